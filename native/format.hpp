// The kernel's form of a weight matrix: what a GGUF tensor becomes when it is loaded, value for value.
//
// A matrix of N outputs by K inputs is cut into *panels* of 16 outputs; a panel is a run of blocks along K, each holding 32 inputs (a
// group) or 256 (a super-block of eight groups) of all 16 outputs. Codes are unsigned and interleaved for the 4-byte dot product: byte
// 4*c+j of line i is output c, input 4*i+j. Every quantised weight is  scale * u - minimum  (see docs/numerics.md).
#pragma once
#include <cstddef>
#include <cstdint>

namespace foredraft {

enum class Type { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

constexpr size_t kPanel = 16;   // outputs computed together
constexpr size_t kGroup = 32;   // inputs that share one activation scale
constexpr size_t kLine = 64;    // bytes: 16 outputs x 4 inputs

struct Codes4 { uint8_t low[256]; };             // line pairs: low nibble is line 2i, high nibble line 2i+1
struct Codes5 { uint8_t low[256], high[64]; };   // bit i of high[b] is bit 4 of byte b of line i
struct Codes6 { uint8_t low[256], high[128]; };  // bits 2(i%4), 2(i%4)+1 of high[64*(i/4)+b] are bits 4, 5 of byte b of line i
struct Codes8 { uint8_t byte[512]; };

template <class Codes> struct Scaled {  // Q4_0 Q5_0 Q8_0: minimum = scale * 2^(bits-1)
    Codes codes[1];
    uint16_t scale[16];
};
template <class Codes> struct Shifted {  // Q4_1 Q5_1
    Codes codes[1];
    uint16_t scale[16], minimum[16];
};
template <class Codes> struct Super {  // Q4_K Q5_K: scale = super_scale * sub_scale, minimum likewise
    Codes codes[8];
    uint16_t scale[16], minimum[16];
    uint8_t sub_scale[8][16], sub_minimum[8][16];
};
struct Super6 {  // Q6_K: scale = super_scale * sub_scale for each 16 inputs, minimum = 32 * scale
    Codes6 codes[8];
    uint16_t scale[16];
    int8_t sub_scale[16][16];
};

struct TypeInfo {
    Type type;
    const char* name;
    size_t block_inputs, file_block_bytes, panel_block_bytes;  // per block of a row in the file, per block of a panel in memory
    bool quantised;
};
const TypeInfo& info(Type type);
const TypeInfo& info(const char* name);  // throws std::invalid_argument for an unknown name

struct Matrix {
    Type type = Type::F32;
    size_t outputs = 0, inputs = 0, panel_bytes = 0;
    const uint8_t* data = nullptr;
    size_t panels() const { return (outputs + kPanel - 1) / kPanel; }
    bool quantised() const { return info(type).quantised; }
};

// Bytes of a row in the file.
size_t row_bytes(Type type, size_t inputs);
// Bytes of a panel in memory.
size_t panel_bytes(Type type, size_t inputs);
// Converts panels [begin, end) of `matrix` from the file's rows at `file` into `data`; outputs beyond the last become zero.
void convert(const Matrix& matrix, const uint8_t* file, uint8_t* data, size_t begin, size_t end);
// Writes output `row` of the matrix (an embedding) as float32: the file's values exactly.
void dequantise(const Matrix& matrix, size_t row, float* out);

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);  // nearest even

}  // namespace foredraft
