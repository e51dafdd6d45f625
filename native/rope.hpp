// Rotary position angles in double precision with our own functions: the C library's differ between machines.
#pragma once
#include <cstddef>
#include <vector>

namespace foredraft {

// Angle per position of each pair of dimensions: scale / (base^(2i/head_dim) * factor_i), factors may be empty.
std::vector<double> rope_frequencies(size_t head_dim, double base, double scale, const std::vector<float>& factors);
// cos and sin of position * frequency for each frequency.
void rope_angles(const std::vector<double>& frequencies, size_t position, float* cosine, float* sine);

}  // namespace foredraft
