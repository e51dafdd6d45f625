// Seeded noise, equal to the bit to src/foredraft/core/noise.py, which is the specification. Only +, -, *, / and operations on bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace foredraft {

inline uint64_t bits_of(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline double double_of(uint64_t bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// ln 2 in two parts: the first has 33 bits, so that its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33, kLog2E = 0x1.71547652b82fep+0;
constexpr double kRound = 0x1.8p+52;  // adding it rounds to the nearest whole number, ties to even
constexpr double kExpCut = -708.0;    // below it the exponential is taken for 0

// Natural logarithm of a finite positive double.
inline double natural_log(double x) {
    const bool small = x < 0x1p-1022;
    const uint64_t bits = bits_of(x * (small ? 0x1p54 : 1.0));
    int64_t exponent = (int64_t)(bits >> 52) - 1022 - (small ? 54 : 0);
    double fraction = double_of((bits & 0xFFFFFFFFFFFFF) | (uint64_t)1022 << 52);  // [1/2, 1)
    if (fraction < 0x1.6a09e667f3bcdp-1) {
        fraction = fraction + fraction;
        exponent--;
    }
    const double f = fraction - 1.0, k = (double)exponent;
    const double s = f / (2.0 + f), z = s * s;
    double series = 2.0 / 21;
    for (int i = 9; i >= 1; i--) series = series * z + 2.0 / (2 * i + 1);
    series = z * series;
    return k * kLn2High - ((s * (f - series) - k * kLn2Low) - f);
}

// e^x for x in [kExpCut, 0]. Always inlined, so that loops over it are compiled for their caller's instruction set.
__attribute__((always_inline)) inline double natural_exp(double x) {
    const double shifted = x * kLog2E + kRound;
    const double k = shifted - kRound;
    const double r = (x - k * kLn2High) - k * kLn2Low;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 1.0 / 2;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * double_of((bits_of(shifted) + 1023) << 52);  // times 2^k: the last bits of `shifted` are k
}

struct Block {
    uint32_t a, b, c, d;
};

// Philox4x32-10.
__attribute__((always_inline)) inline Block philox(uint64_t seed, Block x) {
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        const uint64_t first = (uint64_t)0xD2511F53 * x.a, second = (uint64_t)0xCD9E8D57 * x.c;
        x = {(uint32_t)(second >> 32) ^ x.b ^ key0, (uint32_t)second, (uint32_t)(first >> 32) ^ x.d ^ key1, (uint32_t)first};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return x;
}

inline uint32_t lane(const Block& block, uint32_t token) {
    const uint32_t words[4] = {block.a, block.b, block.c, block.d};
    return words[token & 3];
}

constexpr uint32_t kPicks = 0;  // the stream that decides the target's own tokens

// Standard Gumbel noise of a token whose leading 32 bits are known already.
inline double gumbel(uint64_t seed, uint32_t position, uint32_t token, uint32_t leading) {
    const uint32_t trailing = lane(philox(seed, {token >> 2, position, kPicks, 1}), token);
    const uint64_t odd = (uint64_t)leading << 21 | trailing >> 11 | 1;  // 53 bits, the last one set: neither 0 nor 1
    return -natural_log(-natural_log((double)odd * 0x1p-53));
}

}  // namespace foredraft
