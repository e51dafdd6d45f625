#include "context.hpp"

#include <algorithm>
#include <iterator>
#include <queue>
#include <stdexcept>
#include <string>

namespace foredraft {
namespace {

// Odds of a token that was not seen, where one was seen and where several kinds were.
struct Doubt {
    double one, many;
};

struct Length {
    size_t tokens;
    Doubt own;
    bool remembered;
    Doubt memory;
};

constexpr Length kLengths[] = {
    {20, {0.01, 0.5}, false, {}},        {8, {0.1, 0.5}, false, {}},         {5, {0.2, 0.5}, false, {}},
    {3, {0.4, 0.8}, true, {1.6, 1.2}}, {2, {0.85, 0.9}, true, {3.2, 2.5}}, {1, {2.0, 1.2}, true, {5.0, 6.0}},
};
constexpr size_t kNumLengths = std::size(kLengths), kLongest = kLengths[0].tokens;
constexpr size_t kChildren = 8;
constexpr double kLeast = 0.01;

using Keys = std::array<uint64_t, kNumLengths>;  // 0: the text is too short

// Keys of the contexts that end before `end`, with `count` tokens to read.
Keys keys_of(const int32_t* end, size_t count) {
    Keys keys{};
    uint64_t hash = 0;
    size_t next = kNumLengths;
    for (size_t n = 1; n <= std::min(count, kLongest); n++) {
        hash = (hash + (uint32_t)end[-(ptrdiff_t)n] + 1) * 0x9E3779B97F4A7C15;
        hash ^= hash >> 32;
        if (kLengths[next - 1].tokens != n) continue;
        uint64_t key = (hash + n) * 0xD6E8FEB86659FD93;
        keys[--next] = (key ^ key >> 32) | 1;
    }
    return keys;
}

double escape(const Followers& followers, const Doubt& doubt) {
    uint64_t kept = 0;
    for (size_t i = 0; i < followers.kinds; i++) kept += followers.counts[i].times;
    const uint64_t again = 1 + kept - followers.kinds, forgotten = followers.total - kept;
    const bool one = followers.kinds == 1 && forgotten == 0;
    const double odds = (one ? doubt.one : doubt.many * (double)followers.kinds + (double)forgotten) / (double)again;
    return odds / (1.0 + odds);
}

void check(const int32_t* tokens, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0) throw std::invalid_argument("token " + std::to_string(tokens[i]) + " is negative; ids of tokens count from 0");
}

}  // namespace

void Followers::add(int32_t token) {
    total++;
    uint32_t times = 1;
    size_t at = 0;
    while (at < kinds && counts[at].token != token) at++;
    if (at < kinds)
        times += counts[at].times;
    else if (kinds < kFollowers)
        kinds++;
    else
        at = kFollowers - 1;
    for (; at > 0 && counts[at - 1].times <= times; at--) counts[at] = counts[at - 1];
    counts[at] = {token, times};
}

size_t ContextTable::place(uint64_t key) const {
    size_t at = key >> 1 & (slots_.size() - 1);
    while (slots_[at].total && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
}

void ContextTable::grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old)
        if (slot.total) slots_[place(slot.key)] = slot;
}

bool ContextTable::find(uint64_t key, Followers& out) const {
    const Slot& slot = slots_[place(key)];
    if (!slot.total) return false;
    if (slot.token < 0) {
        out = several_[-1 - slot.token];
    } else {
        out.total = slot.total;
        out.kinds = 1;
        out.counts[0] = {slot.token, slot.total};
    }
    return true;
}

void ContextTable::put(uint64_t key, const Followers& followers) {
    if (++size_ * 4 > slots_.size() * 3) grow();
    Slot& slot = slots_[place(key)];
    slot = {key, followers.total, followers.counts[0].token};
    if (followers.kinds == 1) return;
    slot.token = -1 - (int32_t)several_.size();
    several_.push_back(followers);
}

bool ContextTable::count(uint64_t key, int32_t token) {
    Slot& slot = slots_[place(key)];
    if (!slot.total) return false;
    if (slot.token >= 0 && slot.token != token) {
        Followers both;
        both.total = slot.total;
        both.kinds = 1;
        both.counts[0] = {slot.token, slot.total};
        slot.token = -1 - (int32_t)several_.size();
        several_.push_back(both);
    }
    slot.total++;
    if (slot.token < 0) several_[-1 - slot.token].add(token);
    return true;
}

ContextMemory::ContextMemory(size_t contexts) : limit_(contexts) {
    if (contexts < 1) throw std::invalid_argument("a memory of 0 contexts; it needs one at least");
}

void ContextMemory::add(const int32_t* tokens, size_t count) {
    check(tokens, count);
    const std::lock_guard<std::mutex> turn(mutex_);
    for (size_t end = 1; end < count; end++) {
        const Keys keys = keys_of(tokens + end, end);
        for (size_t i = 0; i < kNumLengths; i++)
            if (keys[i] && kLengths[i].remembered) this->count(keys[i], tokens[end]);
    }
}

void ContextMemory::count(uint64_t key, int32_t token) {
    if (young_.count(key, token)) return;
    if (young_.size() >= limit_) {
        old_ = std::move(young_);
        young_ = ContextTable();
    }
    Followers followers;
    old_.find(key, followers);
    followers.add(token);
    young_.put(key, followers);
}

void ContextModel::add(const int32_t* tokens, size_t count) {
    check(tokens, count);
    std::vector<int32_t> text = last_;
    text.insert(text.end(), tokens, tokens + count);
    for (size_t end = last_.size(); end < text.size(); end++) {
        const Keys keys = keys_of(text.data() + end, end);
        for (uint64_t key : keys) {
            if (!key || table_.count(key, text[end])) continue;
            Followers followers;
            followers.add(text[end]);
            table_.put(key, followers);
        }
    }
    last_.assign(text.end() - (ptrdiff_t)std::min(text.size(), kLongest), text.end());
}

void ContextModel::after(const std::vector<int32_t>& last, std::vector<Guess>& guesses) const {
    guesses.clear();
    double left = 1.0;
    Followers followers;
    // Shares `left` out among the followers that no longer context had. False: nothing is left worth sharing.
    const auto share_out = [&](const Doubt& doubt) {
        std::array<Followers::Count, kFollowers> fresh;
        size_t kinds = 0;
        uint64_t total = 0;
        for (size_t i = 0; i < followers.kinds; i++) {
            const Followers::Count& count = followers.counts[i];
            if (std::any_of(guesses.begin(), guesses.end(), [&](const Guess& guess) { return guess.token == count.token; })) continue;
            fresh[kinds++] = count;
            total += count.times;
        }
        if (!kinds) return true;
        const double doubtful = escape(followers, doubt), share = left * (1.0 - doubtful);
        for (size_t i = 0; i < kinds; i++) guesses.push_back({fresh[i].token, share * (double)fresh[i].times / (double)total});
        left *= doubtful;
        return left >= kLeast;
    };
    const Keys keys = keys_of(last.data() + last.size(), last.size());
    for (size_t i = 0; i < kNumLengths; i++) {
        if (!keys[i]) continue;
        if (table_.find(keys[i], followers) && !share_out(kLengths[i].own)) break;
        if (memory_ && kLengths[i].remembered && memory_->find(keys[i], followers) && !share_out(kLengths[i].memory)) break;
    }
    std::stable_sort(guesses.begin(), guesses.end(), [](const Guess& a, const Guess& b) { return a.chance > b.chance; });
}

ContextTree ContextModel::tree(const std::vector<int32_t>& tail, int64_t most, int64_t depth, double floor) const {
    check(tail.data(), tail.size());
    struct Path {
        double path;
        size_t found;
        int32_t parent, token;
        double chance;
        int64_t depth;
    };
    const auto later = [](const Path& a, const Path& b) { return a.path != b.path ? a.path < b.path : a.found > b.found; };
    std::unique_lock<std::mutex> turn;
    if (memory_) turn = std::unique_lock<std::mutex>(memory_->mutex_);
    std::vector<int32_t> root = last_;
    root.insert(root.end(), tail.begin(), tail.end());

    ContextTree tree;
    std::priority_queue<Path, std::vector<Path>, decltype(later)> waiting(later);
    std::vector<Guess> guesses;
    std::vector<int32_t> branch, last;
    Path here{1.0, 0, -1, -1, 1.0, 0};
    for (size_t found = 0; (int64_t)tree.tokens.size() < most;) {
        const int32_t index = (int32_t)tree.tokens.size() - 1;
        if (here.depth < depth) {
            branch.clear();
            for (int32_t at = index; at >= 0; at = tree.parents[at]) branch.push_back(tree.tokens[at]);
            last.assign(root.end() - (ptrdiff_t)std::min(root.size(), kLongest), root.end());
            last.insert(last.end(), branch.rbegin(), branch.rend());
            after(last, guesses);
            for (size_t i = 0; i < std::min(guesses.size(), kChildren); i++) {
                const double path = here.path * guesses[i].chance;
                if (path >= floor) waiting.push({path, found++, index, guesses[i].token, guesses[i].chance, here.depth + 1});
            }
        }
        if (waiting.empty()) break;
        here = waiting.top();
        waiting.pop();
        tree.tokens.push_back(here.token);
        tree.parents.push_back(here.parent);
        tree.chances.push_back(here.chance);
    }
    return tree;
}

}  // namespace foredraft
