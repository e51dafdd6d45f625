#include "geometry.hpp"

#include <stdexcept>

namespace foredraft {
namespace {

void require(bool holds, const char* what, size_t row, long long value) {
    if (!holds) throw std::invalid_argument("row " + std::to_string(row) + ": " + what + " (" + std::to_string(value) + ")");
}

}  // namespace

Model::Geometry::Geometry(const Rows& rows, size_t vocab, size_t kv_blocks) : owners(rows.owners) {
    for (size_t s = 0; s < rows.sequences; s++) require(rows.lengths[s] >= 0, "its sequence's length is negative", s, rows.lengths[s]);
    for (size_t i = 0; i < rows.sequences * rows.blocks; i++)
        require(rows.tables[i] >= 0 && (size_t)rows.tables[i] < kv_blocks, "a block id of the tables is out of range", i, rows.tables[i]);
    std::vector<size_t> seen(rows.sequences, 0);
    for (size_t i = 0; i < rows.count; i++) {
        const int32_t owner = rows.owners[i], parent = rows.parents[i], token = rows.tokens[i];
        require(owner >= 0 && (size_t)owner < rows.sequences, "its owner is no sequence of this pass", i, owner);
        require(token >= 0 && (size_t)token < vocab, "token id out of range", i, token);
        require(parent >= -1 && parent < (long long)i, "its parent must be an earlier row or -1", i, parent);
        require(parent < 0 || rows.owners[parent] == owner, "its parent belongs to another sequence", i, parent);
        const size_t length = (size_t)rows.lengths[owner], logical = length + seen[owner]++;
        require(logical < rows.blocks * kBlock, "its sequence's table has no room for position", i, (long long)logical);
        table.push_back(rows.tables + (size_t)owner * rows.blocks);
        slot.push_back(table.back()[logical / kBlock] * (int32_t)kBlock + (int32_t)(logical % kBlock));
        position.push_back(parent < 0 ? length : position[parent] + 1);
        tail.push_back(parent < 0 ? std::vector<int32_t>{} : tail[parent]);
        contiguous.push_back(parent < 0 ? length : contiguous[parent]);
        if (tail.back().empty() && logical == position.back())
            contiguous.back() = logical + 1;
        else
            tail.back().push_back(slot.back());
    }
}

RowKeys Model::Geometry::keys(size_t row, size_t window) const {
    const size_t end = position[row] + 1, low = window && end > window ? end - window : 0;
    return {low, contiguous[row], position[row], table[row], tail[row].data()};
}

}  // namespace foredraft
