#include "requantise.hpp"

#include <algorithm>

namespace foredraft {

bool shrinks(Type type, size_t inputs) { return inputs % kGroup == 0 && row_bytes(type, 256) > row_bytes(Type::Q4_0, 256); }

void requantise(const Kernels& kernels, const Matrix& m, Type from, const uint8_t* file, uint8_t* data, size_t begin, size_t end,
                Scratch& scratch) {
    for (size_t p = begin; p < end; p++) {
        const size_t outputs = std::min(kPanel, m.outputs - p * kPanel);
        const Matrix old{from, outputs, m.inputs, scratch.panel.size(), scratch.panel.data()};
        convert(old, file + p * kPanel * row_bytes(from, m.inputs), scratch.panel.data(), 0, 1);
        if (outputs < kPanel) std::fill(scratch.values.begin(), scratch.values.end(), 0.0f);
        for (size_t c = 0; c < outputs; c++) {
            dequantise(old, c, scratch.row.data());
            for (size_t k = 0; k < m.inputs; k++) scratch.values[k * kPanel + c] = scratch.row[k];
        }
        kernels.requantise(scratch.values.data(), m.inputs / kGroup, data + p * m.panel_bytes);
    }
}

}  // namespace foredraft
