// What followed the last tokens of a text, and how often; from it the likeliest tree of continuations. Equal to the bit to
// src/foredraft/drafters/context.py, which is the specification, but that two contexts with one 64-bit hash share their counts.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace foredraft {

constexpr size_t kFollowers = 8;  // tokens a context counts

// Tokens that followed one context: the most frequent first, of equal ones the latest.
struct Followers {
    struct Count {
        int32_t token;
        uint32_t times;
    };
    uint32_t total = 0;  // with tokens now forgotten
    uint32_t kinds = 0;
    std::array<Count, kFollowers> counts{};

    void add(int32_t token);
};

// Contexts by their hash. Most are followed by one token only, which is then all that their slot holds.
class ContextTable {
public:
    ContextTable() : slots_(kFirstSlots) {}

    size_t size() const { return size_; }
    bool find(uint64_t key, Followers& out) const;
    void put(uint64_t key, const Followers& followers);  // of a context that is not there yet
    bool count(uint64_t key, int32_t token);             // false: not there

private:
    struct Slot {
        uint64_t key;
        uint32_t total;  // 0: a free slot
        int32_t token;   // the only follower, or below 0: minus 1 minus the index in `several_`
    };
    static constexpr size_t kFirstSlots = 64;

    size_t place(uint64_t key) const;
    void grow();

    std::vector<Slot> slots_;  // a power of two
    std::vector<Followers> several_;
    size_t size_ = 0;
};

// Contexts of earlier texts, in two generations.
class ContextMemory {
public:
    explicit ContextMemory(size_t contexts);
    void add(const int32_t* tokens, size_t count);

private:
    friend class ContextModel;
    void count(uint64_t key, int32_t token);
    bool find(uint64_t key, Followers& out) const { return young_.find(key, out) || old_.find(key, out); }

    const size_t limit_;
    ContextTable young_, old_;
    std::mutex mutex_;
};

// A tree as a draft has it; `chances` where the parents are right.
struct ContextTree {
    std::vector<int32_t> tokens, parents;
    std::vector<double> chances;
};

class ContextModel {
public:
    explicit ContextModel(std::shared_ptr<ContextMemory> memory) : memory_(std::move(memory)) {}
    void add(const int32_t* tokens, size_t count);
    ContextTree tree(const std::vector<int32_t>& tail, int64_t most, int64_t depth, double floor) const;

private:
    struct Guess {
        int32_t token;
        double chance;
    };
    void after(const std::vector<int32_t>& last, std::vector<Guess>& guesses) const;

    std::shared_ptr<ContextMemory> memory_;
    std::vector<int32_t> last_;  // of the text, the latest at the end
    ContextTable table_;
};

}  // namespace foredraft
