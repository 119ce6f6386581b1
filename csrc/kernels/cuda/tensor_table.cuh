// Many tensors in one launch: a table of addresses that travels with the kernel's arguments, and a
// grid with one block per chunk of elements. No device memory, no copy, no waiting.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector_access.cuh"

namespace ortmodule::cuda {

inline constexpr int64_t kChunkElements = 16384;
inline constexpr int kTableThreads = 256;

/// Up to kTensors tensors of `Lists` operands each; 64 of them stay below the 4 KB that arguments
/// may have on every device.
template <int Lists>
struct TensorTable {
  static constexpr int kTensors = 64;
  static_assert(Lists * 8 + 12 <= 60, "arguments of at most 4 KB");

  void* data[Lists][kTensors];
  int64_t elements[kTensors];
  uint32_t first_chunk[kTensors + 1];  // of each tensor and behind the last
  int tensors;

  /// The tensor that a chunk belongs to: the last that begins at it or before. Empty tensors have
  /// no chunk and begin where the next one does.
  __host__ __device__ int tensor_of(uint32_t chunk) const {
    int low = 0, high = tensors;  // first_chunk[low] <= chunk < first_chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_chunk[middle] <= chunk)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
};

/// Calls launch(table) for tables that hold `count` tensors together. elements_of(i) gives the
/// elements of tensor i, address_of(list, i) the address of its operand `list`.
template <int Lists, class ElementsOf, class AddressOf, class Launch>
void for_each_table(size_t count, const ElementsOf& elements_of, const AddressOf& address_of,
                    const Launch& launch) {
  using Table = TensorTable<Lists>;
  for (size_t begin = 0; begin < count; begin += Table::kTensors) {
    Table table;
    const size_t rest = count - begin;
    table.tensors = static_cast<int>(rest < Table::kTensors ? rest : Table::kTensors);
    table.first_chunk[0] = 0;
    for (int i = 0; i < table.tensors; ++i) {
      const size_t tensor = begin + static_cast<size_t>(i);
      const int64_t elements = elements_of(tensor);
      for (int list = 0; list < Lists; ++list) table.data[list][i] = address_of(list, tensor);
      table.elements[i] = elements;
      table.first_chunk[i + 1] =
          table.first_chunk[i] +
          static_cast<uint32_t>((elements + kChunkElements - 1) / kChunkElements);
    }
    launch(table);
  }
}

}  // namespace ortmodule::cuda
