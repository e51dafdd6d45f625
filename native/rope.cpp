#include "rope.hpp"

#include <cmath>

namespace foredraft {
namespace {

// ln x for x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)).
double natural_log(double x) {
    int e;
    double m = std::frexp(x, &e);
    if (m < 0.70710678118654752440) m *= 2, e--;
    const double s = (m - 1) / (m + 1), s2 = s * s;
    double sum = 0;
    for (int n = 25; n >= 1; n -= 2) sum = sum * s2 + 1.0 / n;
    return 2 * s * sum + e * 0.69314718055994530942;
}

double exponential(double x) {
    const double n = std::nearbyint(x * 1.44269504088896340736);
    const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double sum = 1;
    for (int i = 16; i >= 1; i--) sum = 1 + sum * r / i;
    return std::ldexp(sum, (int)n);
}

// cos and sin of x >= 0: x less the nearest multiple of pi/2 in two parts (the first product is exact below 2^20 multiples), Taylor series.
void cos_sin(double x, double* cosine, double* sine) {
    const double n = std::nearbyint(x * 0.63661977236758134308);
    const double r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11, r2 = r * r;
    double c = 1, s = 1;
    for (int i = 16; i >= 2; i -= 2) c = 1 - c * r2 / (i * (i - 1));
    for (int i = 17; i >= 3; i -= 2) s = 1 - s * r2 / (i * (i - 1));
    s *= r;
    const int quadrant = (int)std::fmod(n, 4.0);
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

}  // namespace

std::vector<double> rope_frequencies(size_t head_dim, double base, double scale, const std::vector<float>& factors) {
    std::vector<double> out(head_dim / 2);
    for (size_t i = 0; i < out.size(); i++) {
        out[i] = scale * exponential(-2.0 * (double)i / (double)head_dim * natural_log(base));
        if (!factors.empty()) out[i] /= (double)factors[i];
    }
    return out;
}

void rope_angles(const std::vector<double>& frequencies, size_t position, float* cosine, float* sine) {
    for (size_t i = 0; i < frequencies.size(); i++) {
        double c, s;
        cos_sin((double)position * frequencies[i], &c, &s);
        cosine[i] = (float)c, sine[i] = (float)s;
    }
}

}  // namespace foredraft
