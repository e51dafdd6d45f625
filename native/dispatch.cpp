// Which instruction sets this machine can run.
#include "kernels.hpp"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace foredraft {
namespace {

#if defined(FOREDRAFT_EMULATE)
bool has_avx2() { return true; }
bool has_avxvnni() { return true; }
bool has_avx512() { return true; }
#elif defined(__x86_64__)
bool has_avxvnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

}  // namespace

size_t available_kernels(const char* names[4]) {
    size_t count = 0;
#if defined(__x86_64__)
    if (has_avx512()) names[count++] = "avx512";
    if (has_avx2() && has_avxvnni()) names[count++] = "avxvnni";
    if (has_avx2()) names[count++] = "avx2";
#endif
    names[count++] = "scalar";
    return count;
}

const Kernels& choose_kernels(const char* name) {
    const char* names[4];
    const size_t count = available_kernels(names);
    const char* asked = *name ? name : std::getenv("FOREDRAFT_ISA");
    const char* wanted = asked && *asked ? asked : names[0];
    for (size_t i = 0; i < count; i++) {
        if (std::strcmp(names[i], wanted) != 0) continue;
#if defined(__x86_64__)
        if (std::strcmp(wanted, "avx512") == 0) return avx512_kernels();
        if (std::strcmp(wanted, "avxvnni") == 0) return avxvnni_kernels();
        if (std::strcmp(wanted, "avx2") == 0) return avx2_kernels();
#endif
        return scalar_kernels();
    }
    std::string message = "instruction set '" + std::string(wanted) + "' can't run on this machine; it has:";
    for (size_t i = 0; i < count; i++) message += std::string(" ") + names[i];
    throw std::invalid_argument(message);
}

}  // namespace foredraft
