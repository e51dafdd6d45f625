// The arithmetic of a pass, one table of functions per instruction set. All tables give the same bits for the same input: integer dot
// products are exact, and every floating-point sum has one order, whatever the width of the registers (docs/numerics.md).
#pragma once
#include "format.hpp"

namespace foredraft {

constexpr size_t kBlock = 64;  // positions in a KV block

// Activations of up to `tile` rows, quantised in groups of 32 inputs; group-major, so that one group of all rows is contiguous.
struct Tile {
    int rows;
    size_t groups;
    const int8_t* q;         // [groups][rows][32]
    const float* scale;      // [groups][rows]
    const float* sum;        // [groups][rows]: scale * sum of q, which minimums are multiplied with
    const int16_t* halves;   // [groups][rows][2]: sums of q over the first and the last 16 inputs
    const int32_t* offsets;  // [groups][rows][2]: -32 * halves
    const float* x;          // [rows][inputs] unquantised, for float weights
};

enum class Activation { silu, gelu };

// One row's keys and values: the contiguous positions [low, contiguous), then `tail` slots at the positions after them.
struct RowKeys {
    size_t low, contiguous, position;
    const int32_t* table;  // block ids of the sequence
    const int32_t* tail;   // physical slots of positions contiguous..position
};

struct AttentionTask {
    const float* const* queries;  // [count] head vectors, already scaled
    float* const* outputs;        // [count]
    const RowKeys* const* rows;   // [count]: whose keys a query sees
    size_t count, head_dim;
    const uint8_t* cache;   // this layer's and KV head's part of block 0
    size_t block_stride;    // bytes from a block to the next
    bool half;              // f16 cache, else f32
    float* scores;          // [count][stride]
    size_t base, stride;    // position of scores[0], a multiple of kBlock
};

struct Kernels {
    const char* name;
    size_t tile;  // most rows of a Tile
    void (*gemm)(const Matrix& w, size_t begin, size_t end, const Tile* tiles, size_t count, float* y, size_t row_stride);
    // Quantises one row into place `row` of a tile of `rows`.
    void (*quantise)(const float* x, size_t inputs, size_t row, size_t rows, int8_t* q, float* scale, float* sum, int16_t* halves);
    void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* y);
    void (*add)(const float* x, float* y, size_t n);  // y += x
    void (*scale)(float factor, float* x, size_t n);
    void (*gate)(const float* gate, const float* up, size_t n, Activation activation, float* y);
    void (*rope)(float* x, const float* cosine, const float* sine, size_t half_dim, bool interleaved);
    void (*store)(const float* x, size_t n, size_t step, bool half, uint8_t* out);  // to the cache's type, `step` elements apart
    void (*attend)(const AttentionTask& task);
    void (*requantise)(const float* x, size_t groups, uint8_t* panel);  // [groups * 32 inputs][16 outputs] to Q4_0, for draft models
    uint64_t (*sweep)(const uint8_t* data, size_t bytes);  // reads every byte; bytes a multiple of 256
};

const Kernels& scalar_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avxvnni_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
#endif

// The table called `name`; where that is empty the one FOREDRAFT_ISA names, else the best this machine can run. Throws
// std::invalid_argument for one it can't run.
const Kernels& choose_kernels(const char* name);
// Names this machine can run, best first; returns how many.
size_t available_kernels(const char* names[5]);

}  // namespace foredraft
