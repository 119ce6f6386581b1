// Cast between texts and numbers, as onnxruntime does it: numbers have as many digits as it takes
// to tell floats of 32 bits apart, and a text is the number that it begins with.
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/element_value.h"
#include "base/error.h"
#include "inference/sized/element_reader.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

std::string text_of_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-INF" : "INF";
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 8);
  return {buffer, end.ptr};
}

template <class T>
std::string text_of_number(T value) {
  return std::to_string(value);
}

void numbers_to_texts(const SizedCall& call) {
  const HostTensorView& x = call.operand(0);
  int64_t* to = call.texts_result(x.sizes);
  with_reader(x, [&](const auto& read) {
    for (int64_t i = 0; i < element_count(x.sizes); ++i) {
      const auto value = read(i);
      if constexpr (std::is_same_v<decltype(value), const float>)
        to[i] = call.texts().number(text_of_number(static_cast<double>(value)));
      else
        to[i] = call.texts().number(text_of_number(value));
    }
  });
}

// What strtod and its kind make of a text. Throws Error if it does not begin with a number.
template <class Read>
auto number_of_text(const std::string& text, DType to, const Read& read) {
  char* end = nullptr;
  errno = 0;
  const auto value = read(text.c_str(), &end);
  ORTM_CHECK(end != text.c_str() && errno != ERANGE,
             "[data] a text must begin with a number of type ", name_of(to), ", but found '", text,
             "'");
  return value;
}

void texts_to_numbers(const SizedCall& call, DType to) {
  const Sizes& sizes = call.operand(0).sizes;
  auto* bytes = call.result<char>(to, sizes);
  for (int64_t k = 0; k < element_count(sizes); ++k) {
    const std::string& text = call.text(0, k);
    if (is_floating(to)) {
      const double value = number_of_text(
          text, to, [](const char* from, char** end) { return std::strtod(from, end); });
      store_real(bytes + k * static_cast<int64_t>(size_of(to)), to, value);
      continue;
    }
    const bool is_unsigned = to == DType::UInt8 || to == DType::UInt16 || to == DType::UInt32 ||
                             to == DType::UInt64 || to == DType::Bool;
    const auto value =
        is_unsigned ? static_cast<int64_t>(number_of_text(text, to,
                                                          [](const char* from, char** end) {
                                                            return std::strtoull(from, end, 10);
                                                          }))
                    : number_of_text(text, to, [](const char* from, char** end) {
                        return static_cast<int64_t>(std::strtoll(from, end, 10));
                      });
    if (to == DType::Bool)
      bytes[k] = value != 0 ? 1 : 0;
    else
      std::memcpy(bytes + k * static_cast<int64_t>(size_of(to)), &value, size_of(to));
  }
}

void run_text_cast(const SizedCall& call) {
  if (call.operand(0).texts)
    texts_to_numbers(call, call.attrs().dtype("to"));
  else
    numbers_to_texts(call);
}

std::vector<SizedResult> most_text_cast(const SizedCall& call) {
  const Sizes& sizes = call.operand(0).sizes;
  return {{call.operand(0).texts ? call.attrs().dtype("to") : DType::Int64, sizes}};
}

const SizedRegistrar kTextCast({"Cast", run_text_cast, most_text_cast});
const SizedRegistrar kTextCastLike({"CastLike", run_text_cast, most_text_cast});

}  // namespace
}  // namespace ortmodule
