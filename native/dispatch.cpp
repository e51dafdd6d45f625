// Which instruction sets this machine can run.
#include "kernels.hpp"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(FOREDRAFT_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace foredraft {
namespace {

#if defined(FOREDRAFT_EMULATE)
bool has_avx2() { return true; }
bool has_avxvnni() { return true; }
bool has_avx512() { return true; }
#elif defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool has_avxvnni() {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(FOREDRAFT_AMX)
// Linux gives tile registers to a process that asks for them (ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), and may refuse.
bool has_amx() {
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3 && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

const struct {
    const char* name;
    bool (*runs)();
    const Kernels& (*kernels)();
} known[] = {
#if defined(FOREDRAFT_AMX)
    {"amx", has_amx, amx_kernels},
#endif
#if defined(__x86_64__)
    {"avx512", has_avx512, avx512_kernels}, {"avxvnni", has_avxvnni, avxvnni_kernels}, {"avx2", has_avx2, avx2_kernels},
#endif
    {"scalar", [] { return true; }, scalar_kernels},
};

}  // namespace

size_t available_kernels(const char* names[5]) {
    size_t count = 0;
    for (const auto& set : known)
        if (set.runs()) names[count++] = set.name;
    return count;
}

const Kernels& choose_kernels(const char* name) {
    const char* asked = *name ? name : std::getenv("FOREDRAFT_ISA");
    for (const auto& set : known)
        if ((!asked || !*asked || std::strcmp(set.name, asked) == 0) && set.runs()) return set.kernels();
    std::string message = "instruction set '" + std::string(asked) + "' can't run on this machine; it has:";
    for (const auto& set : known)
        if (set.runs()) message += std::string(" ") + set.name;
    throw std::invalid_argument(message);
}

}  // namespace foredraft
