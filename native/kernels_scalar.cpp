// The plain form of every kernel, for machines without AVX2 and as the twin that the fast forms are compared with, bit for bit. Compiled
// for the baseline instruction set; fused multiply-adds are the C library's, exact on any machine.
#include "kernels.hpp"

#include <cmath>
#include <cstring>

namespace foredraft {
namespace {

struct F { float v[16]; };
template <class Op> inline F each(Op op) {
    F out;
    for (int i = 0; i < 16; i++) out.v[i] = op(i);
    return out;
}
inline F load(const float* p) { return each([=](int i) { return p[i]; }); }
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F set1(float x) { return each([=](int) { return x; }); }
inline F add(F x, F y) { return each([&](int i) { return x.v[i] + y.v[i]; }); }
inline F sub(F x, F y) { return each([&](int i) { return x.v[i] - y.v[i]; }); }
inline F mul(F x, F y) { return each([&](int i) { return x.v[i] * y.v[i]; }); }
inline F div(F x, F y) { return each([&](int i) { return x.v[i] / y.v[i]; }); }
inline F maximum(F x, F y) { return each([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; }); }
inline F fma(F x, F y, F z) { return each([&](int i) { return std::fma(x.v[i], y.v[i], z.v[i]); }); }
inline F fnma(F x, F y, F z) { return each([&](int i) { return std::fma(-x.v[i], y.v[i], z.v[i]); }); }
inline F round(F x) { return each([&](int i) { return std::nearbyint(x.v[i]); }); }
inline F power2(F n) {
    return each([&](int i) {
        const float bounded = n.v[i] >= -126.0f && n.v[i] <= 127.0f ? n.v[i] : 127.0f;  // a NaN stays one through the product
        const uint32_t bits = (uint32_t)((int)bounded + 127) << 23;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    });
}
inline F less(F a, F b, F x, F y) { return each([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; }); }
inline F load_half(const uint16_t* p) { return each([=](int i) { return half_to_float(p[i]); }); }

#include "kernels_lanes.inc"

inline uint16_t to_half(float value) { return float_to_half(value); }
inline float from_half(uint16_t value) { return half_to_float(value); }

#include "kernels_requantise.inc"

// ---- The row GEMM, one output at a time -----------------------------------------------------------------------------------------------

int nibble(const uint8_t* low, size_t c, size_t k) {
    const uint8_t pair = low[kLine * (k / 8) + 4 * c + k % 4];
    return k / 4 % 2 ? pair >> 4 : pair & 15;
}
int code(const Codes4& w, size_t c, size_t k) { return nibble(w.low, c, k); }
int code(const Codes5& w, size_t c, size_t k) { return nibble(w.low, c, k) + 16 * (w.high[4 * c + k % 4] >> k / 4 & 1); }
int code(const Codes6& w, size_t c, size_t k) {
    return nibble(w.low, c, k) + 16 * (w.high[kLine * (k / 16) + 4 * c + k % 4] >> 2 * (k / 4 % 4) & 3);
}
int code(const Codes8& w, size_t c, size_t k) { return w.byte[kLine * (k / 4) + 4 * c + k % 4]; }

template <class Codes> int dot(const Codes& w, size_t c, const int8_t* q, size_t begin, size_t end) {
    int sum = 0;
    for (size_t k = begin; k < end; k++) sum += code(w, c, k) * q[k];
    return sum;
}

// One group's share of an output: the dot product enters with scale x activation scale, the minimum with the activations' sum.
template <class Codes>
float add_group(const Codes& w, size_t c, float scale, float minimum, const Tile& t, size_t g, size_t m, float acc) {
    const size_t i = g * t.rows + m;
    acc = std::fma((float)dot(w, c, t.q + i * kGroup, 0, 32), scale * t.scale[i], acc);
    return std::fma(-minimum, t.sum[i], acc);
}

template <class Codes> float add_block(const Scaled<Codes>& b, size_t c, const Tile& t, size_t g, size_t m, float acc) {
    const float offset = sizeof(Codes) == sizeof(Codes4) ? 8 : sizeof(Codes) == sizeof(Codes5) ? 16 : 128;
    const float scale = half_to_float(b.scale[c]);
    return add_group(b.codes[0], c, scale, scale * offset, t, g, m, acc);
}
template <class Codes> float add_block(const Shifted<Codes>& b, size_t c, const Tile& t, size_t g, size_t m, float acc) {
    return add_group(b.codes[0], c, half_to_float(b.scale[c]), half_to_float(b.minimum[c]), t, g, m, acc);
}
template <class Codes> float add_block(const Super<Codes>& b, size_t c, const Tile& t, size_t first, size_t m, float acc) {
    for (size_t g = 0; g < 8; g++)
        acc = add_group(b.codes[g], c, half_to_float(b.scale[c]) * (float)b.sub_scale[g][c],
                        half_to_float(b.minimum[c]) * (float)b.sub_minimum[g][c], t, first + g, m, acc);
    return acc;
}
float add_block(const Super6& b, size_t c, const Tile& t, size_t first, size_t m, float acc) {
    for (size_t g = 0; g < 8; g++) {  // both halves' sub-scales are integers, so they join before the one rounding
        const size_t i = (first + g) * t.rows + m;
        const int8_t* q = t.q + i * kGroup;
        const int a = b.sub_scale[2 * g][c] * (dot(b.codes[g], c, q, 0, 16) - 32 * t.halves[2 * i]);
        const int z = b.sub_scale[2 * g + 1][c] * (dot(b.codes[g], c, q, 16, 32) - 32 * t.halves[2 * i + 1]);
        acc = std::fma((float)(a + z), half_to_float(b.scale[c]) * t.scale[i], acc);
    }
    return acc;
}

template <class Block> float block_output(const uint8_t* panel, size_t c, const Tile& t, size_t m) {
    constexpr size_t groups = sizeof(Block::codes) / sizeof(Block::codes[0]);
    const Block* block = reinterpret_cast<const Block*>(panel);
    float acc = 0.0f;
    for (size_t g = 0; g < t.groups; g += groups) acc = add_block(*block++, c, t, g, m, acc);
    return acc;
}

float as_float(Type type, const uint8_t* panel, size_t i) {
    if (type == Type::F16) return half_to_float(reinterpret_cast<const uint16_t*>(panel)[i]);
    uint32_t bits = type == Type::F32 ? reinterpret_cast<const uint32_t*>(panel)[i]
                                      : (uint32_t)reinterpret_cast<const uint16_t*>(panel)[i] << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

float plain_output(const Matrix& w, const uint8_t* panel, size_t c, const Tile& t, size_t m) {
    float acc = 0.0f;
    for (size_t k = 0; k < w.inputs; k++) acc = std::fma(as_float(w.type, panel, k * kPanel + c), t.x[m * w.inputs + k], acc);
    return acc;
}

float output(const Matrix& w, size_t n, const Tile& t, size_t m) {
    const uint8_t* panel = w.data + n / kPanel * w.panel_bytes;
    const size_t c = n % kPanel;
    switch (w.type) {
        case Type::Q4_0: return block_output<Scaled<Codes4>>(panel, c, t, m);
        case Type::Q4_1: return block_output<Shifted<Codes4>>(panel, c, t, m);
        case Type::Q5_0: return block_output<Scaled<Codes5>>(panel, c, t, m);
        case Type::Q5_1: return block_output<Shifted<Codes5>>(panel, c, t, m);
        case Type::Q8_0: return block_output<Scaled<Codes8>>(panel, c, t, m);
        case Type::Q4_K: return block_output<Super<Codes4>>(panel, c, t, m);
        case Type::Q5_K: return block_output<Super<Codes5>>(panel, c, t, m);
        case Type::Q6_K: return block_output<Super6>(panel, c, t, m);
        default: return plain_output(w, panel, c, t, m);
    }
}

void gemm(const Matrix& w, size_t begin, size_t end, const Tile* tiles, size_t count, float* y, size_t row_stride) {
    const size_t last = smaller(end * kPanel, w.outputs);
    for (size_t i = 0; i < count; y += tiles[i++].rows * row_stride)
        for (size_t m = 0; m < (size_t)tiles[i].rows; m++)
            for (size_t n = begin * kPanel; n < last; n++) y[m * row_stride + n] = output(w, n, tiles[i], m);
}

void quantise(const float* x, size_t inputs, size_t row, size_t rows, int8_t* q, float* scale, float* sum, int16_t* halves) {
    for (size_t g = 0; g < inputs / kGroup; g++, x += kGroup) {
        const size_t i = g * rows + row;
        uint32_t top = 0, bits;
        for (size_t k = 0; k < kGroup; k++) {
            std::memcpy(&bits, x + k, 4);
            top = (bits & 0x7fffffff) > top ? bits & 0x7fffffff : top;
        }
        float largest;
        std::memcpy(&largest, &top, 4);
        const bool finite = top < 0x7f800000;  // a NaN or infinity gives zeros and a NaN scale, and is seen downstream
        float inverse = finite && largest > 0.0f ? 127.0f / largest : 0.0f;
        if (!(inverse < INFINITY)) inverse = 0.0f;
        scale[i] = finite ? largest / 127.0f : NAN;
        int total[2] = {0, 0};
        for (size_t k = 0; k < kGroup; k++) {
            q[i * kGroup + k] = finite ? (int8_t)std::nearbyint(x[k] * inverse) : 0;
            total[k / 16] += q[i * kGroup + k];
        }
        halves[2 * i] = (int16_t)total[0], halves[2 * i + 1] = (int16_t)total[1];
        sum[i] = scale[i] * (float)(total[0] + total[1]);
    }
}

uint64_t sweep(const uint8_t* data, size_t size) {
    uint64_t sum = 0, word;
    for (size_t i = 0; i < size; i += 8) {
        std::memcpy(&word, data + i, 8);
        sum ^= word;
    }
    return sum;
}

}  // namespace

const Kernels& scalar_kernels() {
    static const Kernels kernels = {"scalar", 8, gemm, quantise, lanes_rms_norm, lanes_add, lanes_scale, lanes_gate, lanes_rope, lanes_store, lanes_attend, lanes_requantise, sweep};
    return kernels;
}

}  // namespace foredraft
