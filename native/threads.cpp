#include "threads.hpp"

#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace foredraft {
namespace {

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// About 0.2 ms: longer than the host's work between two passes, short enough not to hold a core that somebody else wants.
constexpr int kSpins = 4000;

}  // namespace

#if defined(__x86_64__)
FloatMode::FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatMode::~FloatMode() { _mm_setcsr(saved_); }
#else
FloatMode::FloatMode() : saved_(0) {}
FloatMode::~FloatMode() {}
#endif

ThreadPool::ThreadPool(size_t threads) {
    try {
        for (size_t i = 1; i < threads; i++) helpers_.emplace_back([this, i] { help(i); });
    } catch (const std::system_error&) {
        const size_t started = this->threads();
        join();  // a thread that still runs must not be destroyed
        throw std::invalid_argument("the system allows " + std::to_string(started) + " threads, not " + std::to_string(threads));
    }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run(size_t count, Function function, const void* context) {
    if (count == 0) return;
    if (helpers_.empty() || count == 1) {
        for (size_t i = 0; i < count; i++) function(context, i, 0);
        return;
    }
    // Close the last job first: a helper that still looks at it must not take the new count for its own.
    const uint32_t closed = (uint32_t)(ticket_ >> 32) + 1, job = closed + 1;
    ticket_ = (uint64_t)closed << 32 | UINT32_MAX;
    function_ = function, context_ = context, count_ = count, done_ = 0;
    ticket_ = (uint64_t)job << 32;
    if (sleeping_ > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    work(job, 0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != count; spins++)
        spins < kSpins ? relax() : std::this_thread::yield();
}

void ThreadPool::work(uint32_t job, size_t worker) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
        const size_t index = (uint32_t)ticket;
        if ((uint32_t)(ticket >> 32) != job || index >= count_.load(std::memory_order_relaxed)) return;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
        function_.load(std::memory_order_relaxed)(context_.load(std::memory_order_relaxed), index, worker);
        done_.fetch_add(1, std::memory_order_release);
        ticket = ticket_.load(std::memory_order_acquire);
    }
}

void ThreadPool::help(size_t worker) {
    FloatMode mode;
    uint32_t last = 0;
    for (int spins = 0; !stop_; spins++) {
        const uint32_t job = (uint32_t)(ticket_.load(std::memory_order_acquire) >> 32);
        if (job != last) {
            work(job, worker);
            last = job;
            spins = 0;
        } else if (spins < kSpins) {
            relax();
        } else {
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            wake_.wait(lock, [&] { return stop_ || (uint32_t)(ticket_ >> 32) != last; });
            sleeping_--;
        }
    }
}

}  // namespace foredraft
