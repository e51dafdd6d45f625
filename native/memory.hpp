// Memory from the system: a file mapped for reading, and large buffers on huge pages where the system gives them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace foredraft {

class MappedFile {
public:
    explicit MappedFile(const std::string& path);  // throws std::runtime_error naming the path and the reason
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    size_t size() const { return size_; }
    // Checked: throws std::invalid_argument where [offset, offset + bytes) is not inside the file.
    const uint8_t* at(size_t offset, size_t bytes) const;
    // Gives whole pages inside the range back to the system; they stay in its page cache.
    void release(const uint8_t* begin, size_t bytes) const;

private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

class Buffer {  // zeroed, aligned to a huge page
public:
    explicit Buffer(size_t bytes);  // throws std::bad_alloc
    ~Buffer();
    Buffer(const Buffer&) = delete;
    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

private:
    uint8_t *data_ = nullptr, *mapping_ = nullptr;
    size_t size_ = 0, mapped_ = 0;
};

}  // namespace foredraft
