#include "bind_pick.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "noise.hpp"
#include "pick.hpp"
#include "threads.hpp"

namespace nb = nanobind;

namespace foredraft {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Threads and the memory that picks reuse; callers take turns.
class Picker {
public:
    Picker(size_t threads, bool baseline)
        : pool_(threads), scratch_(threads), loops_(baseline ? baseline_pick_loops() : best_pick_loops()) {}

    std::vector<int32_t> pick(const std::vector<PickRow>& rows, size_t vocab) {
        std::vector<int32_t> tokens(rows.size());
        const std::lock_guard<std::mutex> turn(mutex_);
        const FloatMode mode;
        pool_.run(rows.size(), [&](size_t i, size_t worker) { tokens[i] = pick_row(rows[i], vocab, loops_, scratch_[worker]); });
        return tokens;
    }

private:
    std::mutex mutex_;
    ThreadPool pool_;
    std::vector<PickScratch> scratch_;
    const PickLoops& loops_;
};

std::vector<int32_t> pick(Picker& picker, const Logits& logits, const std::vector<const PickSettings*>& settings,
                          const std::vector<uint32_t>& positions, const std::vector<Ids>& seen, const std::vector<Ids>& counts,
                          const std::vector<Ids>& paths) {
    const size_t n = logits.shape(0), vocab = logits.shape(1);
    if (vocab == 0 || vocab > kMaxVocab) throw std::invalid_argument("a row must have 1 to 2^20 logits");
    for (size_t size : {settings.size(), positions.size(), seen.size(), counts.size(), paths.size()})
        if (size != n) throw std::invalid_argument("every list must have one entry per row of logits");
    std::vector<PickRow> rows;
    for (size_t i = 0; i < n; i++) {
        if (!settings[i]) throw std::invalid_argument("settings must not be None");
        if (seen[i].size() != counts[i].size()) throw std::invalid_argument("seen tokens and their counts differ in number");
        rows.push_back({logits.data() + i * vocab, settings[i], positions[i], seen[i].data(), counts[i].data(), paths[i].data(),
                        seen[i].size(), paths[i].size()});
    }
    nb::gil_scoped_release release;
    return picker.pick(rows, vocab);
}

void make_settings(PickSettings* self, double temperature, size_t top_k, double top_p, double min_p, double repetition, double presence,
                   double frequency, uint64_t seed, const std::map<int32_t, double>& bias) {
    new (self) PickSettings{temperature, top_p, min_p, top_k, repetition, presence, frequency, seed, {bias.begin(), bias.end()}};
}

// For the tests: the parts of a pick that must equal the twin's to the bit.
std::vector<double> noise_of(uint64_t seed, uint32_t position, const Ids& tokens) {
    std::vector<double> noise;
    for (size_t i = 0; i < tokens.size(); i++) {
        const uint32_t token = (uint32_t)tokens.data()[i];
        const uint64_t blocks[4] = {token >> 2};
        uint32_t words[16];
        best_pick_loops().hash(seed, position, blocks, 1, words);
        noise.push_back(gumbel(seed, position, token, words[token & 3]));
    }
    return noise;
}

std::vector<int64_t> weights_of(std::vector<double> lags, bool baseline) {
    std::vector<int64_t> weights(lags.size());
    for (double& lag : lags) lag = std::max(lag, kExpCut);
    (baseline ? baseline_pick_loops() : best_pick_loops()).weigh(lags.data(), lags.size(), weights.data());
    return weights;
}

}  // namespace
}  // namespace foredraft

void bind_pick(nb::module_& m) {
    using namespace foredraft;
    using namespace nb::literals;
    nb::class_<PickSettings>(m, "PickSettings")
        .def("__init__", &make_settings, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition"_a, "presence"_a, "frequency"_a,
             "seed"_a, "bias"_a);
    nb::class_<Picker>(m, "Picker")
        .def(nb::init<size_t, bool>(), "threads"_a = 1, "baseline"_a = false)
        .def("pick", &pick, "logits"_a, "settings"_a, "positions"_a, "seen"_a, "counts"_a, "paths"_a);
    m.def("pick_noise", &noise_of, "seed"_a, "position"_a, "tokens"_a);
    m.def("pick_weights", &weights_of, "lags"_a, "baseline"_a = false);
}
