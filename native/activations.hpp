// The input of a matrix product: rows of float32, quantised once for all the matrices that read them, cut into tiles.
#pragma once
#include <vector>

#include "kernels.hpp"
#include "threads.hpp"

namespace foredraft {

class Activations {
public:
    // x: [rows][inputs], must outlive this object's use.
    void fill(const Kernels& kernels, ThreadPool& pool, const float* x, size_t rows, size_t inputs);
    const std::vector<Tile>& tiles() const { return tiles_; }

private:
    std::vector<Tile> tiles_;
    std::vector<int8_t> q_;
    std::vector<float> scale_, sum_;
    std::vector<int16_t> halves_;
    std::vector<int32_t> offsets_;
};

struct Product {
    const Matrix* weights;
    float* y;  // [rows][row_stride]
    size_t row_stride;
};

// y = x W^T for each product; all read the same activations, and their panels are one job for the pool.
void multiply(const Kernels& kernels, ThreadPool& pool, const Activations& x, const std::vector<Product>& products);

}  // namespace foredraft
