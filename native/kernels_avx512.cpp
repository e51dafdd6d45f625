// AVX-512 with VNNI: one register is a panel's sixteen outputs.
#include "kernels.hpp"

#include "intrinsics.hpp"

namespace foredraft {
namespace {

#include "kernels_avx512.inc"
#include "kernels_lanes.inc"

inline uint16_t to_half(float value) { return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), 0), 0); }
inline float from_half(uint16_t value) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(value))); }

#include "kernels_requantise.inc"

struct F32Word;
struct F16Word;
struct BF16Word;
inline Col load_words(const F32Word* p) { return _mm512_loadu_ps((const float*)p); }
inline Col load_words(const F16Word* p) { return load_half((const uint16_t*)p); }
inline Col load_words(const BF16Word* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}

inline uint32_t largest_bits(const float* x) {
    const Int mask = _mm512_set1_epi32(0x7fffffff);
    const Int a = both(_mm512_loadu_si512(x), mask), b = both(_mm512_loadu_si512(x + 16), mask);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

inline void quantise_group(const float* x, float inverse, bool finite, int8_t* q, int* first, int* second) {
    if (!finite) {
        for (int i = 0; i < 32; i++) q[i] = 0;
        *first = *second = 0;
        return;
    }
    const Col factor = all(inverse);
    const Int a = _mm512_cvtps_epi32(mul(load(x), factor)), b = _mm512_cvtps_epi32(mul(load(x + 16), factor));
    *first = _mm512_reduce_add_epi32(a), *second = _mm512_reduce_add_epi32(b);
    _mm_storeu_si128((__m128i*)q, _mm512_cvtsepi32_epi8(a));
    _mm_storeu_si128((__m128i*)(q + 16), _mm512_cvtsepi32_epi8(b));
}

template <int Count> inline Int dot(Int sum, const Int* u, const int8_t* q) {
#pragma GCC unroll 8
    for (int i = 0; i < Count; i++) sum = _mm512_dpbusd_epi32(sum, u[i], word(q + 4 * i));
    return sum;
}

template <int Bits> inline void dot_rows(const Int u[8], const int8_t* q, const int16_t*, int rows, Int* sums) {
#pragma GCC unroll kByTurns
    for (int m = 0; m < rows; m++) sums[m] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll kByTurns
        for (int m = 0; m < rows; m++) sums[m] = _mm512_dpbusd_epi32(sums[m], u[i], word(q + m * kGroup + 4 * i));
}

struct SubScales {
    Col first, second;
    SubScales(const int8_t* a, const int8_t* b) : first(to_float(load_signed(a))), second(to_float(load_signed(b))) {}
};

// sum of sub_scale * (u - 32) * q over both halves of the group: integers below 2^24 in magnitude, so floats are exact, and quicker
inline Col scaled_dot32(const Int u[8], const Tile& t, size_t i, const SubScales& s) {
    const Int first = dot<4>(word(t.offsets + 2 * i), u, t.q + i * kGroup);
    const Int second = dot<4>(word(t.offsets + 2 * i + 1), u + 4, t.q + i * kGroup + 16);
    return fma(to_float(second), s.second, mul(to_float(first), s.first));
}

#include "kernels_gemm.inc"

uint64_t sweep(const uint8_t* data, size_t size) {
    Int a[4] = {bytes(0), bytes(0), bytes(0), bytes(0)};
    for (size_t i = 0; i < size; i += 256)
        for (int j = 0; j < 4; j++) {
            _mm_prefetch((const char*)data + i + 4096 + 64 * j, _MM_HINT_T0);
            a[j] = _mm512_xor_si512(a[j], _mm512_load_si512(data + i + 64 * j));
        }
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(a[0], a[1]), _mm512_xor_si512(a[2], a[3])));
}

}  // namespace

const Kernels& avx512_kernels() {
    static const Kernels kernels = {"avx512", kTile, gemm, quantise, lanes_rms_norm, lanes_add, lanes_scale, lanes_gate, lanes_rope, lanes_store, lanes_attend, lanes_requantise, sweep};
    return kernels;
}

}  // namespace foredraft
