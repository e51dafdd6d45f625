// The token a row of logits gives, equal to the bit to src/foredraft/core/pick.py, which is the specification: tokens that cannot be kept
// or cannot win are passed over only where bounds prove it. No global state: rows may be picked by several threads at once, each with a
// scratch of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace foredraft {

constexpr size_t kMaxVocab = 1 << 20;  // so that a sum of weights fits into 63 bits

// Ascending like the float itself; plus and minus zero are equal.
__attribute__((always_inline)) inline int32_t sortable(float x) {
    const float positive_zero = x + 0.0f;
    int32_t bits;
    std::memcpy(&bits, &positive_zero, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// Settings of one request; ranges are checked by whoever makes them (Python's Sampling).
struct PickSettings {
    double temperature = 0, top_p = 1, min_p = 0;
    size_t top_k = 0;
    double repetition = 1, presence = 0, frequency = 0;
    uint64_t seed = 0;
    std::vector<std::pair<int32_t, double>> bias;

    bool penalises() const { return repetition != 1 || presence != 0 || frequency != 0; }
};

// One row to pick from. Tokens seen and how often each was written (0: in the prompt only), then the drafted path of this row.
struct PickRow {
    const float* logits;
    const PickSettings* settings;
    uint32_t position;
    const int32_t *seen, *counts, *path;
    size_t num_seen, num_path;
};

// What `pick_row` returns instead of a token.
enum PickFailure : int32_t { kNotANumber = -1, kAllForbidden = -2, kBadBias = -3, kBadHistory = -4 };

// The loops over a whole row, one table per instruction set; all give the same picks.
struct PickLoops {
    // Least and greatest logit as order-preserving integers; of the greatest ones the first index. Not-a-number sorts outside infinity.
    void (*range)(const float* x, size_t n, int32_t& least, int32_t& greatest);
    // Writes `first` plus the index of every x >= threshold and returns how many.
    size_t (*collect)(const float* x, size_t n, int32_t first, float threshold, int32_t* ids);
    // Adds up exp((x - maximum) * inverse) of at most kChunk tokens, x >= threshold and x < threshold apart, within kRoughError.
    void (*roughly)(const float* x, size_t n, float threshold, float maximum, float inverse, double& above, double& below);
    // Weights in whole 2^-42ths of lags of at least kExpCut; returns their sum.
    int64_t (*weigh)(const double* lag, size_t n, int64_t* weight);
    // The leading bits of four tokens per block: words[4 * i + lane] of block i. Works in steps of up to 4 blocks, the last one whole.
    void (*hash)(uint64_t seed, uint32_t position, const uint64_t* block, size_t n, uint32_t* words);
    // Bounds from above on lag plus noise, from leading bits alone; returns how many reach `best`.
    size_t (*bound)(const float* x, const uint32_t* leading, size_t n, float maximum, float inverse, float best, float* bounds);
};

constexpr size_t kChunk = 1024;
constexpr double kRoughError = 5e-5;

const PickLoops& baseline_pick_loops();
const PickLoops& best_pick_loops();  // for this machine

// Memory that picks reuse; grows to a few megabytes.
struct PickScratch {
    std::vector<float> row, logits;
    std::vector<int32_t> found, ids, crossing;
    std::vector<uint8_t> buckets;
    std::vector<std::pair<int32_t, int32_t>> counts;
    std::vector<double> lags;
    std::vector<int64_t> weights;
};

int32_t pick_row(const PickRow& row, size_t vocab, const PickLoops& loops, PickScratch& scratch);

}  // namespace foredraft
