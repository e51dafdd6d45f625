// A pool whose caller works too: tiles of a job are claimed one by one from an atomic ticket, helpers steal what they can, and nobody
// waits for a helper that holds no tile. So a core taken by another process costs its share of the work, never a stalled barrier.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

// Rounding to nearest and no flushing of denormals while in scope: a host library may have set otherwise in this thread.
class FloatMode {
public:
    FloatMode();
    ~FloatMode();
    FloatMode(const FloatMode&) = delete;

private:
    unsigned saved_;
};

class ThreadPool {
public:
    explicit ThreadPool(size_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;

    size_t threads() const { return helpers_.size() + 1; }
    // Calls task(i, worker) for every i in [0, count), on the caller (worker 0) and the helpers; returns when all are done. Tasks must
    // not throw. One job at a time: the callers of one pool take turns outside.
    template <class Task> void run(size_t count, const Task& task) {
        run(count, [](const void* context, size_t i, size_t worker) { (*static_cast<const Task*>(context))(i, worker); }, &task);
    }

private:
    using Function = void (*)(const void* context, size_t index, size_t worker);
    void run(size_t count, Function function, const void* context);
    void work(uint32_t job, size_t worker);
    void help(size_t worker);
    void join();

    // High half: the job's number; low half: the next tile. A claim succeeds only while its job is the current one, and the job cannot
    // end while a claimed tile is not done: so the fields below are stable for whoever holds a tile.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<size_t> done_{0}, count_{0};
    std::atomic<Function> function_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<bool> stop_{false};
    std::atomic<int> sleeping_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> helpers_;
};

}  // namespace foredraft
