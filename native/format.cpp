#include "format.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace foredraft {
namespace {

constexpr TypeInfo kTypes[] = {
    {Type::F32, "F32", 1, 4, 64, false},
    {Type::F16, "F16", 1, 2, 32, false},
    {Type::BF16, "BF16", 1, 2, 32, false},
    {Type::Q4_0, "Q4_0", 32, 18, sizeof(Scaled<Codes4>), true},
    {Type::Q4_1, "Q4_1", 32, 20, sizeof(Shifted<Codes4>), true},
    {Type::Q5_0, "Q5_0", 32, 22, sizeof(Scaled<Codes5>), true},
    {Type::Q5_1, "Q5_1", 32, 24, sizeof(Shifted<Codes5>), true},
    {Type::Q8_0, "Q8_0", 32, 34, sizeof(Scaled<Codes8>), true},
    {Type::Q4_K, "Q4_K", 256, 144, sizeof(Super<Codes4>), true},
    {Type::Q5_K, "Q5_K", 256, 176, sizeof(Super<Codes5>), true},
    {Type::Q6_K, "Q6_K", 256, 210, sizeof(Super6), true},
};

uint16_t read_half(const uint8_t* p) {
    uint16_t value;
    std::memcpy(&value, p, 2);
    return value;
}

uint16_t negated(uint16_t half) { return half ^ 0x8000; }

// Places one output's codes of a group into the interleaved lines, one byte a code.
void place(const uint8_t* codes, size_t output, uint8_t lines[512]) {
    for (size_t i = 0; i < 8; i++) std::memcpy(lines + kLine * i + 4 * output, codes + 4 * i, 4);
}

void pack(const uint8_t lines[512], Codes4& out) {
    for (size_t i = 0; i < 4; i++)
        for (size_t b = 0; b < kLine; b++) out.low[kLine * i + b] = (lines[128 * i + b] & 15) | (lines[128 * i + 64 + b] & 15) << 4;
}
void pack(const uint8_t lines[512], Codes5& out) {
    for (size_t i = 0; i < 4; i++)
        for (size_t b = 0; b < kLine; b++) out.low[kLine * i + b] = (lines[128 * i + b] & 15) | (lines[128 * i + 64 + b] & 15) << 4;
    std::memset(out.high, 0, sizeof out.high);
    for (size_t i = 0; i < 8; i++)
        for (size_t b = 0; b < kLine; b++) out.high[b] |= (lines[kLine * i + b] >> 4 & 1) << i;
}
void pack(const uint8_t lines[512], Codes6& out) {
    for (size_t i = 0; i < 4; i++)
        for (size_t b = 0; b < kLine; b++) out.low[kLine * i + b] = (lines[128 * i + b] & 15) | (lines[128 * i + 64 + b] & 15) << 4;
    std::memset(out.high, 0, sizeof out.high);
    for (size_t i = 0; i < 8; i++)
        for (size_t b = 0; b < kLine; b++) out.high[kLine * (i / 4) + b] |= (lines[kLine * i + b] >> 4 & 3) << 2 * (i % 4);
}
void pack(const uint8_t lines[512], Codes8& out) { std::memcpy(out.byte, lines, sizeof out.byte); }

int nibble_pair(const uint8_t* low, size_t line, size_t byte) {
    uint8_t pair = low[kLine * (line / 2) + byte];
    return line % 2 ? pair >> 4 : pair & 15;
}
int code(const Codes4& c, size_t line, size_t byte) { return nibble_pair(c.low, line, byte); }
int code(const Codes5& c, size_t line, size_t byte) { return nibble_pair(c.low, line, byte) | (c.high[byte] >> line & 1) << 4; }
int code(const Codes6& c, size_t line, size_t byte) {
    return nibble_pair(c.low, line, byte) | (c.high[kLine * (line / 4) + byte] >> 2 * (line % 4) & 3) << 4;
}
int code(const Codes8& c, size_t line, size_t byte) { return c.byte[kLine * line + byte]; }
template <class Codes> int code_of(const Codes& c, size_t output, size_t input) {
    return code(c, input / 4, 4 * output + input % 4);
}

// Codes of the 32 weights of one file block: nibbles are inputs 0..15 low, 16..31 high.
void nibbles32(const uint8_t* q, uint8_t out[32]) {
    for (size_t j = 0; j < 16; j++) out[j] = q[j] & 15, out[j + 16] = q[j] >> 4;
}
void fifths32(const uint8_t* high, const uint8_t* q, uint8_t out[32]) {
    uint32_t bits;
    std::memcpy(&bits, high, 4);
    nibbles32(q, out);
    for (size_t j = 0; j < 32; j++) out[j] |= (bits >> j & 1) << 4;
}

void set(Scaled<Codes4>& b, const uint8_t* f, size_t c, uint8_t u[1][512]) {
    uint8_t codes[32];
    b.scale[c] = read_half(f);
    nibbles32(f + 2, codes);
    place(codes, c, u[0]);
}
void set(Shifted<Codes4>& b, const uint8_t* f, size_t c, uint8_t u[1][512]) {
    uint8_t codes[32];
    b.scale[c] = read_half(f), b.minimum[c] = negated(read_half(f + 2));
    nibbles32(f + 4, codes);
    place(codes, c, u[0]);
}
void set(Scaled<Codes5>& b, const uint8_t* f, size_t c, uint8_t u[1][512]) {
    uint8_t codes[32];
    b.scale[c] = read_half(f);
    fifths32(f + 2, f + 6, codes);
    place(codes, c, u[0]);
}
void set(Shifted<Codes5>& b, const uint8_t* f, size_t c, uint8_t u[1][512]) {
    uint8_t codes[32];
    b.scale[c] = read_half(f), b.minimum[c] = negated(read_half(f + 2));
    fifths32(f + 4, f + 8, codes);
    place(codes, c, u[0]);
}
void set(Scaled<Codes8>& b, const uint8_t* f, size_t c, uint8_t u[1][512]) {
    uint8_t codes[32];
    b.scale[c] = read_half(f);
    for (size_t j = 0; j < 32; j++) codes[j] = f[2 + j] ^ 0x80;  // q + 128
    place(codes, c, u[0]);
}

// The eight 6-bit sub-scales and sub-minimums of a K block, from their 12 packed bytes.
void unpack_sub_scales(const uint8_t* s, uint8_t scale[8], uint8_t minimum[8]) {
    for (size_t g = 0; g < 4; g++) {
        scale[g] = s[g] & 63, minimum[g] = s[g + 4] & 63;
        scale[g + 4] = (s[g + 8] & 15) | s[g] >> 6 << 4;
        minimum[g + 4] = s[g + 8] >> 4 | s[g + 4] >> 6 << 4;
    }
}
template <class Codes> void set_sub_scales(Super<Codes>& b, const uint8_t* f, size_t c) {
    uint8_t scale[8], minimum[8];
    unpack_sub_scales(f + 4, scale, minimum);
    b.scale[c] = read_half(f), b.minimum[c] = read_half(f + 2);
    for (size_t g = 0; g < 8; g++) b.sub_scale[g][c] = scale[g], b.sub_minimum[g][c] = minimum[g];
}
void set(Super<Codes4>& b, const uint8_t* f, size_t c, uint8_t u[8][512]) {
    uint8_t codes[32];
    set_sub_scales(b, f, c);
    for (size_t g = 0; g < 8; g++) {
        const uint8_t* q = f + 16 + 32 * (g / 2);
        for (size_t j = 0; j < 32; j++) codes[j] = g % 2 ? q[j] >> 4 : q[j] & 15;
        place(codes, c, u[g]);
    }
}
void set(Super<Codes5>& b, const uint8_t* f, size_t c, uint8_t u[8][512]) {
    uint8_t codes[32];
    set_sub_scales(b, f, c);
    for (size_t g = 0; g < 8; g++) {
        const uint8_t *high = f + 16, *q = f + 48 + 32 * (g / 2);
        for (size_t j = 0; j < 32; j++) codes[j] = (g % 2 ? q[j] >> 4 : q[j] & 15) | (high[j] >> g & 1) << 4;
        place(codes, c, u[g]);
    }
}
void set(Super6& b, const uint8_t* f, size_t c, uint8_t u[8][512]) {
    uint8_t codes[32];
    b.scale[c] = read_half(f + 208);
    for (size_t s = 0; s < 16; s++) b.sub_scale[s][c] = (int8_t)f[192 + s];
    for (size_t g = 0; g < 8; g++) {  // each half of 128 holds four groups: low nibbles 0, 1, high nibbles 2, 3
        const uint8_t *q = f + 64 * (g / 4) + 32 * (g % 2), *high = f + 128 + 32 * (g / 4);
        for (size_t j = 0; j < 32; j++)
            codes[j] = (g % 4 < 2 ? q[j] & 15 : q[j] >> 4) | (high[j] >> 2 * (g % 4) & 3) << 4;
        place(codes, c, u[g]);
    }
}

template <class Block> void convert_panel(const TypeInfo& t, const Matrix& m, const uint8_t* file, uint8_t* data, size_t panel) {
    constexpr size_t groups = sizeof(Block::codes) / sizeof(Block::codes[0]);
    const size_t blocks = m.inputs / t.block_inputs, row_bytes = blocks * t.file_block_bytes;
    const size_t used = m.outputs - panel * kPanel < kPanel ? m.outputs - panel * kPanel : kPanel;
    for (size_t k = 0; k < blocks; k++) {
        alignas(64) uint8_t lines[groups][512] = {};
        auto* block = reinterpret_cast<Block*>(data + panel * m.panel_bytes) + k;
        std::memset(static_cast<void*>(block), 0, sizeof(Block));
        for (size_t c = 0; c < used; c++) set(*block, file + (panel * kPanel + c) * row_bytes + k * t.file_block_bytes, c, lines);
        for (size_t g = 0; g < groups; g++) pack(lines[g], block->codes[g]);
    }
}

template <class Word> void convert_plain(const Matrix& m, const uint8_t* file, uint8_t* data, size_t panel) {
    auto* out = reinterpret_cast<Word*>(data + panel * m.panel_bytes);
    for (size_t c = 0; c < kPanel; c++) {
        const size_t output = panel * kPanel + c;
        for (size_t k = 0; k < m.inputs; k++) {
            Word value = 0;
            if (output < m.outputs) std::memcpy(&value, file + (output * m.inputs + k) * sizeof(Word), sizeof(Word));
            out[k * kPanel + c] = value;
        }
    }
}

template <class Codes> float value(const Scaled<Codes>& b, size_t, size_t c, int u) {
    constexpr int offset = sizeof(Codes) == sizeof(Codes4) ? 8 : sizeof(Codes) == sizeof(Codes5) ? 16 : 128;
    return half_to_float(b.scale[c]) * (float)(u - offset);
}
template <class Codes> float value(const Shifted<Codes>& b, size_t, size_t c, int u) {
    return half_to_float(b.scale[c]) * (float)u + half_to_float(negated(b.minimum[c]));
}
template <class Codes> float value(const Super<Codes>& b, size_t k, size_t c, int u) {
    const size_t g = k / kGroup;
    const float scale = half_to_float(b.scale[c]) * (float)b.sub_scale[g][c];
    return scale * (float)u - half_to_float(b.minimum[c]) * (float)b.sub_minimum[g][c];
}
float value(const Super6& b, size_t k, size_t c, int u) {
    return half_to_float(b.scale[c]) * (float)b.sub_scale[k / 16][c] * (float)(u - 32);
}

template <class Block> void dequantise_blocks(const TypeInfo& t, const Matrix& m, size_t row, float* out) {
    const auto* block = reinterpret_cast<const Block*>(m.data + row / kPanel * m.panel_bytes);
    const size_t c = row % kPanel;
    for (size_t k = 0; k < m.inputs; k += t.block_inputs, block++)
        for (size_t j = 0; j < t.block_inputs; j++)
            out[k + j] = value(*block, j, c, code_of(block->codes[j / kGroup], c, j % kGroup));
}

}  // namespace

const TypeInfo& info(Type type) { return kTypes[(int)type]; }

const TypeInfo& info(const char* name) {
    for (const TypeInfo& t : kTypes)
        if (std::strcmp(t.name, name) == 0) return t;
    throw std::invalid_argument("unknown tensor type " + std::string(name));
}

size_t row_bytes(Type type, size_t inputs) { return inputs / info(type).block_inputs * info(type).file_block_bytes; }

size_t panel_bytes(Type type, size_t inputs) { return inputs / info(type).block_inputs * info(type).panel_block_bytes; }

void convert(const Matrix& m, const uint8_t* file, uint8_t* data, size_t begin, size_t end) {
    const TypeInfo& t = info(m.type);
    for (size_t p = begin; p < end; p++) switch (m.type) {
        case Type::F32: convert_plain<uint32_t>(m, file, data, p); break;
        case Type::F16: case Type::BF16: convert_plain<uint16_t>(m, file, data, p); break;
        case Type::Q4_0: convert_panel<Scaled<Codes4>>(t, m, file, data, p); break;
        case Type::Q4_1: convert_panel<Shifted<Codes4>>(t, m, file, data, p); break;
        case Type::Q5_0: convert_panel<Scaled<Codes5>>(t, m, file, data, p); break;
        case Type::Q5_1: convert_panel<Shifted<Codes5>>(t, m, file, data, p); break;
        case Type::Q8_0: convert_panel<Scaled<Codes8>>(t, m, file, data, p); break;
        case Type::Q4_K: convert_panel<Super<Codes4>>(t, m, file, data, p); break;
        case Type::Q5_K: convert_panel<Super<Codes5>>(t, m, file, data, p); break;
        case Type::Q6_K: convert_panel<Super6>(t, m, file, data, p); break;
    }
}

void dequantise(const Matrix& m, size_t row, float* out) {
    const TypeInfo& t = info(m.type);
    const uint8_t* panel = m.data + row / kPanel * m.panel_bytes;
    switch (m.type) {
        case Type::F32:
            for (size_t k = 0; k < m.inputs; k++) out[k] = reinterpret_cast<const float*>(panel)[k * kPanel + row % kPanel];
            break;
        case Type::F16:
            for (size_t k = 0; k < m.inputs; k++) out[k] = half_to_float(reinterpret_cast<const uint16_t*>(panel)[k * kPanel + row % kPanel]);
            break;
        case Type::BF16:
            for (size_t k = 0; k < m.inputs; k++) {
                uint32_t bits = (uint32_t)reinterpret_cast<const uint16_t*>(panel)[k * kPanel + row % kPanel] << 16;
                std::memcpy(out + k, &bits, 4);
            }
            break;
        case Type::Q4_0: dequantise_blocks<Scaled<Codes4>>(t, m, row, out); break;
        case Type::Q4_1: dequantise_blocks<Shifted<Codes4>>(t, m, row, out); break;
        case Type::Q5_0: dequantise_blocks<Scaled<Codes5>>(t, m, row, out); break;
        case Type::Q5_1: dequantise_blocks<Shifted<Codes5>>(t, m, row, out); break;
        case Type::Q8_0: dequantise_blocks<Scaled<Codes8>>(t, m, row, out); break;
        case Type::Q4_K: dequantise_blocks<Super<Codes4>>(t, m, row, out); break;
        case Type::Q5_K: dequantise_blocks<Super<Codes5>>(t, m, row, out); break;
        case Type::Q6_K: dequantise_blocks<Super6>(t, m, row, out); break;
    }
}

float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0);  // NaN becomes quiet, as in hardware
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        const float value = (float)mantissa * 0x1p-24f;  // subnormal: exact
        std::memcpy(&bits, &value, 4);
        bits |= sign;
    }
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | (bits >> 13 & 1023);
    if (bits >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
    if (bits < 0x38800000) {                       // subnormal: let the float adder round to a multiple of 2^-24
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        const float rounded = magnitude + 0.5f;
        uint32_t shifted;
        std::memcpy(&shifted, &rounded, 4);
        return sign | (uint16_t)(shifted - 0x3f000000);
    }
    const uint32_t odd = bits >> 13 & 1;
    return sign | (uint16_t)((bits - 0x38000000 + 0xfff + odd) >> 13);
}

}  // namespace foredraft
