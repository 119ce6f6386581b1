// The two kinds of failure: a rule the caller broke (Error) and a bug of ours (InternalError).
#pragma once

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ortmodule {

/// A rule that the user's model, call or configuration broke; Python sees `ORTModuleError`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An index of the user's outside of its range; Python sees an `ORTModuleError` that is an
/// `IndexError` as well, which is what eager PyTorch raises.
class IndexOutOfRange : public Error {
 public:
  using Error::Error;
};

/// An invariant of this program that does not hold; the message asks for a report.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Why something cannot be done here; empty means that it can. Never an exception.
using Reason = std::optional<std::string>;

/// Concatenates anything that streams.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace ortmodule

#define ORTM_CHECK(condition, ...)                                             \
  do {                                                                         \
    if (!(condition)) throw ::ortmodule::Error(::ortmodule::str(__VA_ARGS__)); \
  } while (false)

#define ORTM_ASSERT(condition, ...)                                                             \
  do {                                                                                          \
    if (!(condition))                                                                           \
      throw ::ortmodule::InternalError(                                                         \
          ::ortmodule::str("internal error, please report it: ", __VA_ARGS__, " [", #condition, \
                           " at ", __FILE__, ":", __LINE__, "]"));                              \
  } while (false)
