// What all parts of the ONNX reader share: the file, where it is being read, and limits. The file
// is not trusted, so that memory and recursion are bounded and every error says where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/page_region.h"
#include "onnx/onnx_external.h"
#include "onnx/onnx_model.h"
#include "onnx/onnx_substitutes.h"
#include "onnx/onnx_wire.h"

namespace ortmodule {

class OnnxReadContext {
 public:
  /// `name` is for errors; `folder` may hold external data.
  OnnxReadContext(SharedBytes file, std::string name, OnnxExternalData external,
                  const OnnxSubstitutes& given);

  /// Throws Error: "[onnx] <file>: <message> (node 'a', tensor 'b')".
  [[noreturn]] void fail(const std::string& message) const;

  /// Calls `visit` for each field of a message.
  void walk(std::string_view message, Visitor<WireField> visit) const;

  // The value of a field, which must be of the right kind.
  int64_t integer(const WireField& field) const;
  float number(const WireField& field) const;
  std::string_view bytes(const WireField& field) const;
  /// Text in UTF-8.
  std::string text(const WireField& field) const;
  /// The elements of a repeated field of varints, packed or not.
  void integers(const WireField& field, Visitor<int64_t> visit) const;
  /// The elements of a repeated field of floats, packed or not.
  void floats(const WireField& field, Visitor<float> visit) const;
  /// The little-endian elements of a repeated field of 4 or 8 bytes each, packed or not: each call
  /// has a number of them.
  void fixed(const WireField& field, size_t element_bytes, Visitor<std::string_view> visit) const;

  /// Part of the file as bytes that keep it alive, or a copy if nothing does.
  SharedBytes part(std::string_view view) const {
    return file_.owner() ? SharedBytes(file_.owner(), view, file_.mapped())
                         : SharedBytes(std::string(view));
  }
  /// Decoded elements of a tensor, small ones together with others, as they stay with the model.
  SharedBytes decoded(std::string elements);
  /// Fields without a member of the model, collected by append_field().
  OnnxRest rest(std::string fields);
  OnnxExternalData& external() { return external_; }
  const OnnxSubstitutes& given() const { return given_; }
  /// How many graphs and types are around what is being read.
  int depth() const { return depth_; }

  /// Adds an element to a list, within the limit of memory.
  template <class T>
  T& grow(std::vector<T>& list, T element = T()) {
    charge(sizeof(T));
    return list.emplace_back(std::move(element));
  }
  /// Counts memory of the model beside the file's. Throws Error beyond the limit.
  void charge(size_t bytes);
  /// The same for elements of dense tensors that the file holds as sparse ones.
  void charge_dense(size_t bytes);

  /// What is being read, for errors, until the end of the scope.
  template <class T>
  class Within {
   public:
    Within(const T*& place, const T& now) : place_(place), before_(std::exchange(place, &now)) {}
    ~Within() { place_ = before_; }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    const T*& place_;
    const T* before_;
  };
  [[nodiscard]] Within<OnnxNode> within(const OnnxNode& node) { return {node_, node}; }
  [[nodiscard]] Within<std::string> within_tensor(const std::string& name) {
    return {tensor_, name};
  }
  [[nodiscard]] Within<std::string> within_value(const std::string& name) { return {value_, name}; }

  /// One level of nested graphs or types, until the end of the scope.
  class Level {
   public:
    explicit Level(OnnxReadContext& context);
    ~Level() { --context_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    OnnxReadContext& context_;
  };

 private:
  void expect(const WireField& field, WireField::Kind kind) const;

  SharedBytes file_;
  std::shared_ptr<PageRegion> decoded_;  // small tensors; null before the first
  std::string name_;
  OnnxExternalData external_;
  const OnnxSubstitutes& given_;
  const OnnxNode* node_ = nullptr;
  const std::string* tensor_ = nullptr;
  const std::string* value_ = nullptr;
  int depth_ = 0;
  size_t memory_left_bytes_;
  size_t dense_left_bytes_;
};

}  // namespace ortmodule
