#include "pick.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "noise.hpp"

namespace foredraft {
namespace {

constexpr double kWeightUnit = 0x1p42;
constexpr double kNoWeight = 31;  // weights are 0 from about 29.8 on
constexpr float kBoundSlack = 1e-3f;  // the error of a bound in float32 is below 1e-4 wherever a token could win
constexpr size_t kBuckets = 256;

// Processed logits of a row, and what everything below needs of them.
struct Row {
    const float* x;
    size_t n;
    const PickSettings& settings;
    uint32_t position;
    const PickLoops& loops;
    PickScratch& scratch;
    int32_t top = 0;  // the first of the ranking
    double inverse = 0;

    float greatest() const { return x[top]; }
    double lag(int32_t id) const { return ((double)x[id] - (double)greatest()) * inverse; }
    bool before(int32_t a, int32_t b) const { return x[a] > x[b] || (x[a] == x[b] && a < b); }

    // At most the logit of any token of this lag, but above minus infinity.
    float threshold(double depth) const {
        const double span = depth * settings.temperature;
        const double value = greatest() - span - 1e-6 * (std::fabs((double)greatest()) + span);
        return value > -FLT_MAX ? std::nextafterf((float)value, -FLT_MAX) : -FLT_MAX;
    }
};

// What the weights above and below a threshold add up to, roughly, in units of the greatest.
struct Rough {
    double above = 0, below = 0;
};

// Lists all tokens at or above the threshold: a beginning of the ranking, in the order of ids.
void collect(Row& row, float threshold, Rough* rough = nullptr) {
    auto& found = row.scratch.found;
    if (found.size() <= row.n) found.resize(row.n + 1);  // an entry that is not counted may be written after the last
    size_t count = 0;
    for (size_t begin = 0; begin < row.n; begin += kChunk) {
        const size_t n = std::min(kChunk, row.n - begin);
        const float* x = row.x + begin;
        count += row.loops.collect(x, n, (int32_t)begin, threshold, found.data() + count);
        if (rough) row.loops.roughly(x, n, threshold, row.greatest(), (float)row.inverse, rough->above, rough->below);
    }
    row.scratch.ids.assign(found.begin(), found.begin() + count);
}

int32_t count_tokens(const PickRow& in, size_t vocab, PickScratch& scratch) {
    auto& counts = scratch.counts;
    counts.clear();
    for (size_t i = 0; i < in.num_seen; i++) counts.emplace_back(in.seen[i], in.counts[i]);
    for (size_t i = 0; i < in.num_path; i++) {  // a path is short
        const auto same = [&](const auto& entry) { return entry.first == in.path[i]; };
        const auto found = std::find_if(counts.begin(), counts.end(), same);
        if (found == counts.end()) counts.emplace_back(in.path[i], 1);
        else found->second++;
    }
    for (const auto& [token, count] : counts)
        if (token < 0 || (size_t)token >= vocab) return kBadHistory;
    return 0;
}

// Penalties and bias into scratch.row, each touched token from its raw logit; 0 or a failure.
int32_t process(const PickRow& in, size_t vocab, PickScratch& scratch) {
    const PickSettings& s = *in.settings;
    scratch.counts.clear();
    if (s.penalises())
        if (const int32_t failure = count_tokens(in, vocab, scratch)) return failure;
    scratch.row.assign(in.logits, in.logits + vocab);
    for (const auto& [token, bias] : s.bias) {
        if (token < 0 || (size_t)token >= vocab) return kBadBias;
        scratch.row[token] = (float)((double)in.logits[token] + bias);
    }
    for (const auto& [token, count] : scratch.counts) {
        double value = in.logits[token];
        value = value > 0.0 ? value / s.repetition : value * s.repetition;
        if (count) {
            value = value - s.frequency * count;
            value = value - s.presence;
        }
        const auto bias = std::lower_bound(s.bias.begin(), s.bias.end(), std::make_pair(token, -HUGE_VAL));
        if (bias != s.bias.end() && bias->first == token) value = value + bias->second;
        scratch.row[token] = (float)value;
    }
    return 0;
}

// Finds the first of the ranking; 0 or a failure.
int32_t find_top(Row& row) {
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    size_t best = 0;
    for (size_t begin = 0; begin < row.n; begin += 4096) {
        int32_t low, high;
        row.loops.range(row.x + begin, std::min<size_t>(4096, row.n - begin), low, high);
        least = std::min(least, low);
        if (high > greatest || begin == 0) greatest = high, best = begin;
    }
    if (greatest >= sortable(HUGE_VALF) || least < sortable(-HUGE_VALF)) return kNotANumber;
    if (greatest == sortable(-HUGE_VALF)) return kAllForbidden;
    while (sortable(row.x[best]) != greatest) best++;
    row.top = (int32_t)best;
    return 0;
}

void keep_top_k(Row& row) {
    auto& ids = row.scratch.ids;
    const size_t k = row.settings.top_k;
    for (const double depth : {12.0, 24.0, HUGE_VAL}) {
        collect(row, row.threshold(depth));
        if (ids.size() >= k) break;
    }
    if (ids.size() <= k) return;
    std::nth_element(ids.begin(), ids.begin() + k, ids.end(), [&](int32_t a, int32_t b) { return row.before(a, b); });
    ids.resize(k);
}

int64_t needed(const Row& row, int64_t total) {
    return std::max<int64_t>(1, (int64_t)(row.settings.top_p * (double)total));
}

// Weights of the listed tokens and the buckets they fall into, which follow the ranking; returns the total.
int64_t weigh_listed(Row& row, double depth, int64_t* sums) {
    PickScratch& s = row.scratch;
    const size_t n = s.ids.size();
    s.lags.resize(n), s.weights.resize(n), s.buckets.resize(n);
    const int32_t* ids = s.ids.data();
    double* __restrict lags = s.lags.data();
    uint8_t* __restrict buckets = s.buckets.data();
    const float* x = row.x;
    const double greatest = row.greatest(), inverse = row.inverse, scale = kBuckets / depth;
    for (size_t i = 0; i < n; i++) lags[i] = std::max(((double)x[ids[i]] - greatest) * inverse, kExpCut);
    const int64_t total = row.loops.weigh(lags, n, s.weights.data());
    for (size_t i = 0; i < n; i++) buckets[i] = (uint8_t)(int32_t)std::min(kBuckets - 1.0, -lags[i] * scale);
    for (size_t i = 0; i < n; i++) sums[buckets[i]] += s.weights[i];
    return total;
}

// Keeps of the listed tokens, a beginning of the ranking, those that top-p keeps; unlisted ones weigh together something between the two
// given sums. False, and all are kept, where that leaves the border open.
bool keep_nucleus(Row& row, int64_t tail_low, int64_t tail_high, double depth) {
    PickScratch& s = row.scratch;
    int64_t sums[kBuckets] = {};
    const int64_t total = weigh_listed(row, depth, sums);
    const int64_t low = needed(row, total + tail_low), high = needed(row, total + tail_high);
    if (high > total) return false;

    // Only the bucket in which the sum reaches `low` must be ranked within.
    size_t last = 0;
    int64_t before = 0;
    while (before + sums[last] < low) before += sums[last++];
    s.crossing.clear();
    for (size_t i = 0; i < s.ids.size(); i++)
        if (s.buckets[i] == last) s.crossing.push_back((int32_t)i);
    std::sort(s.crossing.begin(), s.crossing.end(), [&](int32_t a, int32_t b) { return row.before(s.ids[a], s.ids[b]); });
    size_t taken = 0;
    for (; before < low; taken++) {
        s.found[taken] = s.ids[s.crossing[taken]];
        before += s.weights[s.crossing[taken]];
    }
    if (high > before) return false;

    const uint8_t* buckets = s.buckets.data();
    int32_t* found = s.found.data();
    for (size_t i = 0; i < s.ids.size(); i++) {
        found[taken] = s.ids[i];
        taken += buckets[i] < last;
    }
    s.ids.assign(found, found + taken);
    return true;
}

// Top-p over a whole row. Only tokens near the greatest are weighed, the others' sum is bounded; deeper where that doesn't decide.
void keep_nucleus_of_all(Row& row) {
    const double p = row.settings.top_p, rounding = 0.5 * (double)row.n + 1;  // a weight is the nearest whole number
    for (const double depth : {10.0, 20.0}) {
        Rough rough;
        collect(row, row.threshold(depth), &rough);
        if (rough.above < p * (rough.above + rough.below)) continue;  // hopeless
        const double low = kWeightUnit * rough.below * (1 - kRoughError) - rounding;
        const double high = kWeightUnit * rough.below * (1 + kRoughError) + rounding;
        if (keep_nucleus(row, (int64_t)std::max(0.0, low), (int64_t)high + 1, depth)) return;
    }
    collect(row, row.threshold(kNoWeight));
    keep_nucleus(row, 0, 0, kNoWeight);
}

// Applies the filters; false where there are none, so that every token competes.
bool filter(Row& row) {
    const PickSettings& s = row.settings;
    auto& ids = row.scratch.ids;
    const bool top_k = s.top_k && s.top_k < row.n;
    if (top_k) keep_top_k(row);
    if (s.top_p < 1 && top_k) keep_nucleus(row, 0, 0, kNoWeight);
    else if (s.top_p < 1) keep_nucleus_of_all(row);
    if (s.min_p > 0) {
        const double deepest = natural_log(s.min_p);
        if (!top_k && s.top_p >= 1) collect(row, row.threshold(-deepest));
        ids.erase(std::remove_if(ids.begin(), ids.end(), [&](int32_t id) { return row.lag(id) < deepest; }), ids.end());
    }
    return top_k || s.top_p < 1 || s.min_p > 0;
}

// The leader among the tokens considered so far.
struct Race {
    Row& row;
    int32_t leader = -1;
    double best = 0;
    uint64_t blocks[kChunk] = {};
    uint32_t words[4 * kChunk], leading[kChunk];
    float bounds[kChunk];

    explicit Race(Row& row) : row(row) {
        const uint32_t top = (uint32_t)row.top;
        consider(row.top, lane(philox(row.settings.seed, {top >> 2, row.position, kPicks, 0}), top));
    }
    void consider(int32_t id, uint32_t bits) {
        const double score = row.lag(id) + gumbel(row.settings.seed, row.position, (uint32_t)id, bits);
        if (leader < 0 || score > best || (score == best && id < leader)) leader = id, best = score;
    }
    // Noise in full only for those whose leading bits let them reach the best so far.
    template <class Id> void consider_all(const float* logits, const uint32_t* bits, size_t n, const Id& id) {
        const float inverse = (float)row.inverse;
        if (!row.loops.bound(logits, bits, n, row.greatest(), inverse, (float)best - kBoundSlack, bounds)) return;
        for (size_t i = 0; i < n; i++)
            if (bounds[i] >= (float)best - kBoundSlack) consider(id(i), bits[i]);
    }
};

int32_t race_of_all(Row& row) {
    Race race(row);
    for (size_t begin = 0; begin < row.n; begin += kChunk) {
        constexpr size_t num_blocks = kChunk / 4;
        for (size_t i = 0; i < num_blocks; i++) race.blocks[i] = begin / 4 + i;
        row.loops.hash(row.settings.seed, row.position, race.blocks, num_blocks, race.words);
        const size_t n = std::min(kChunk, row.n - begin);
        race.consider_all(row.x + begin, race.words, n, [&](size_t i) { return (int32_t)(begin + i); });
    }
    return race.leader;
}

int32_t race_of_listed(Row& row) {
    Race race(row);
    const auto& ids = row.scratch.ids;
    row.scratch.logits.resize(kChunk);
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
        const size_t n = std::min(kChunk, ids.size() - begin);
        const int32_t* id = ids.data() + begin;
        for (size_t i = 0; i < n; i++) race.blocks[i] = (uint64_t)id[i] >> 2;
        row.loops.hash(row.settings.seed, row.position, race.blocks, n, race.words);
        for (size_t i = 0; i < n; i++) race.leading[i] = race.words[4 * i + (size_t)(id[i] & 3)];
        for (size_t i = 0; i < n; i++) row.scratch.logits[i] = row.x[id[i]];
        race.consider_all(row.scratch.logits.data(), race.leading, n, [&](size_t i) { return id[i]; });
    }
    return race.leader;
}

}  // namespace

int32_t pick_row(const PickRow& in, size_t vocab, const PickLoops& loops, PickScratch& scratch) {
    const PickSettings& settings = *in.settings;
    const bool touched = !settings.bias.empty() || settings.penalises();
    if (touched)
        if (const int32_t failure = process(in, vocab, scratch)) return failure;
    Row row{touched ? scratch.row.data() : in.logits, vocab, settings, in.position, loops, scratch};
    if (const int32_t failure = find_top(row)) return failure;
    if (settings.temperature == 0) return row.top;
    row.inverse = 1.0 / settings.temperature;
    return filter(row) ? race_of_listed(row) : race_of_all(row);
}

}  // namespace foredraft
