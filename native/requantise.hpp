// Requantising: a draft model's matrices become Q4_0 while they are loaded, so that a pass reads 4.5 bits a weight. In loading, values
// change here and nowhere else.
#pragma once
#include <vector>

#include "kernels.hpp"

namespace foredraft {

// Whether a matrix gets smaller: its type costs more than 4.5 bits a weight, and its rows are whole groups.
bool shrinks(Type type, size_t inputs);

// Room for one panel on its way; each thread needs its own.
struct Scratch {
    std::vector<uint8_t> panel;      // in the old form
    std::vector<float> row, values;  // [inputs], [inputs][16 outputs]
    Scratch(Type from, size_t inputs) : panel(panel_bytes(from, inputs)), row(inputs), values(inputs * kPanel) {}
};

// As `convert`, but the file's rows are of type `from` and those of `matrix` become Q4_0.
void requantise(const Kernels& kernels, const Matrix& matrix, Type from, const uint8_t* file, uint8_t* data, size_t begin, size_t end,
                Scratch& scratch);

}  // namespace foredraft
