// The two kinds of errors: a mistake of the user (Error) and a bug of ours (InternalError).
#pragma once

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ortmodule {

/// A violated requirement on the user's model, call or configuration: `ORTModuleError` in Python.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An out-of-range index of the user. In Python an `ORTModuleError` that is also an `IndexError`,
/// as in eager PyTorch.
class IndexOutOfRange : public Error {
 public:
  using Error::Error;
};

/// A violated invariant of this library; the message asks the user to report it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Why something is not possible; nullopt if it is. Never thrown.
using Reason = std::optional<std::string>;

/// Concatenates the arguments as written by operator<<.
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
