// Operators whose results have sizes that only their data tells (NonZero, Unique ...). They run
// between the plans of a model's segments: they count, take what they need, and write.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/host_tensor.h"
#include "inference/run_texts.h"
#include "ir/attr.h"

namespace ortmodule {

/// A call: operands, row-major, and what takes memory for results.
class SizedCall {
 public:
  using Take = std::function<void*(DType dtype, const Sizes& sizes, bool texts)>;

  /// `texts`: those of the run; null without data.
  SizedCall(const Attrs& attrs, const std::vector<HostTensorView>& operands, Take take,
            RunTexts* texts = nullptr)
      : attrs_(attrs), operands_(operands), take_(std::move(take)), texts_(texts) {}

  const Attrs& attrs() const { return attrs_; }
  bool has(size_t i) const {
    return i < operands_.size() && operands_[i].dtype != DType::Undefined;
  }
  const HostTensorView& operand(size_t i) const { return operands_.at(i); }
  template <class T>
  const T* data(size_t i) const {
    return static_cast<const T*>(operands_.at(i).data);
  }
  /// The only element of operand i, or `fallback` if it is absent. Throws Error if it has others.
  int64_t integer(size_t i, int64_t fallback) const;
  float number(size_t i, float fallback) const;
  /// Memory of the next result.
  template <class T>
  T* result(DType dtype, const Sizes& sizes) const {
    return static_cast<T*>(take_(dtype, sizes, false));
  }

  // --- texts, which tensors have by number
  RunTexts& texts() const { return *texts_; }
  /// Element k of operand i.
  const std::string& text(size_t i, int64_t k) const { return texts_->text(data<int64_t>(i)[k]); }
  /// Those of an attribute, which has their numbers.
  std::vector<std::string> text_attr(std::string_view name) const;
  int64_t* texts_result(const Sizes& sizes) const {
    return static_cast<int64_t*>(take_(DType::Int64, sizes, true));
  }

 private:
  void check_single(size_t i, DType dtype) const;

  const Attrs& attrs_;
  const std::vector<HostTensorView>& operands_;
  Take take_;
  RunTexts* texts_;
};

struct SizedResult {
  DType dtype = DType::Undefined;
  Sizes sizes;
};

struct SizedOp {
  std::string_view op;
  /// Throws Error for operands that do not fit each other.
  void (*run)(const SizedCall&) = nullptr;
  /// The results of such operands, which have no data here, with the most elements.
  std::vector<SizedResult> (*most)(const SizedCall&) = nullptr;
};

/// The operator, or null.
const SizedOp* find_sized_op(std::string_view op);

class SizedRegistrar {
 public:
  explicit SizedRegistrar(SizedOp op);
};

}  // namespace ortmodule
