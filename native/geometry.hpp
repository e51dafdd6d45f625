// Where each row of a pass lies and which keys it sees.
#pragma once
#include <vector>

#include "model.hpp"

namespace foredraft {

// Row number j of its owner in a pass is written to the logical index length + j, so a chain lies where it belongs and needs no move; the
// keys of a tree's row are the kept tokens, then as much of its path as happens to lie in place, then the rest one by one (its tail).
struct Model::Geometry {
    std::vector<size_t> position, contiguous;  // [n]
    std::vector<int32_t> slot;                 // [n] physical: block * 64 + offset
    std::vector<std::vector<int32_t>> tail;    // [n] slots of positions contiguous..position
    std::vector<const int32_t*> table;         // [n] its sequence's block ids
    const int32_t* owners;

    // Throws std::invalid_argument for rows that are inconsistent with each other, their tables or the vocabulary.
    Geometry(const Rows& rows, size_t vocab, size_t kv_blocks);
    RowKeys keys(size_t row, size_t window) const;
};

}  // namespace foredraft
