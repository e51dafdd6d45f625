#include "memory.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace foredraft {
namespace {

constexpr size_t kHugePage = size_t(2) << 20, kPage = 4096;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace

MappedFile::MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::runtime_error("can't open " + path + ": " + std::strerror(errno));
    struct stat status;
    if (fstat(file, &status) == 0 && status.st_size > 0) {
        size_ = (size_t)status.st_size;
        void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
        data_ = mapping == MAP_FAILED ? nullptr : static_cast<uint8_t*>(mapping);
    }
    const int error = errno;
    close(file);
    if (!data_) throw std::runtime_error("can't map " + path + ": " + (size_ ? std::strerror(error) : "the file is empty"));
}

MappedFile::~MappedFile() { munmap(data_, size_); }

const uint8_t* MappedFile::at(size_t offset, size_t bytes) const {
    if (offset > size_ || bytes > size_ - offset)
        throw std::invalid_argument("bytes " + std::to_string(offset) + " to " + std::to_string(offset) + "+" + std::to_string(bytes) +
                                    " lie outside the file of " + std::to_string(size_) + " bytes");
    return data_ + offset;
}

void MappedFile::release(const uint8_t* begin, size_t bytes) const {
    const size_t first = round_up((size_t)(begin - data_), kPage), last = ((size_t)(begin - data_) + bytes) / kPage * kPage;
    if (last > first) madvise(data_ + first, last - first, MADV_DONTNEED);
}

Buffer::Buffer(size_t bytes) : size_(bytes), mapped_(round_up(bytes, kHugePage) + kHugePage) {
    if (mapped_ < bytes) throw std::bad_alloc();
    void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<uint8_t*>(mapping);
    data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(mapping), kHugePage));
#ifdef MADV_HUGEPAGE
    madvise(data_, round_up(bytes, kHugePage), MADV_HUGEPAGE);
#endif
}

Buffer::~Buffer() { munmap(mapping_, mapped_); }

}  // namespace foredraft
