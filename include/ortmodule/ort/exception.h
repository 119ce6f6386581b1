// Ort::Exception and the status that functions of the C interface return.
#pragma once

#include <ortmodule/inference.h>
#include <ortmodule/ort/c_types.h>

#include <exception>
#include <string>
#include <utility>

struct OrtStatus {
  OrtErrorCode code = ORT_OK;
  std::string message;
};
using OrtStatusPtr = OrtStatus*;

namespace Ort {

/// What every function of namespace Ort throws.
class Exception : public std::exception {
 public:
  Exception(std::string text, OrtErrorCode code) : text_(std::move(text)), code_(code) {}
  Exception(std::string&& text, OrtErrorCode code, int) : Exception(std::move(text), code) {}

  OrtErrorCode GetOrtErrorCode() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
  OrtErrorCode code_;
};

namespace detail {

inline OrtErrorCode code_of(ortmodule::inference::ErrorCode code) {
  using Code = ortmodule::inference::ErrorCode;
  switch (code) {
    case Code::InvalidArgument: return ORT_INVALID_ARGUMENT;
    case Code::NoSuchFile: return ORT_NO_SUCHFILE;
    case Code::InvalidModel: return ORT_INVALID_PROTOBUF;
    case Code::NotImplemented: return ORT_NOT_IMPLEMENTED;
    case Code::OutOfMemory: return ORT_RUNTIME_EXCEPTION;
    default: return ORT_FAIL;
  }
}

/// Calls `body`; errors of the library leave as Ort::Exception.
template <class Body>
auto translated(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const ortmodule::inference::Error& error) {
    throw Exception(error.what(), code_of(error.code()));
  }
}

/// Calls `body`; whatever it throws becomes a status.
template <class Body>
OrtStatus* status_of(const Body& body) {
  try {
    translated(body);
    return nullptr;
  } catch (const Exception& error) {
    return new OrtStatus{error.GetOrtErrorCode(), error.what()};
  } catch (const std::exception& error) {
    return new OrtStatus{ORT_FAIL, error.what()};
  }
}

[[noreturn]] inline void refuse(const std::string& message,
                                OrtErrorCode code = ORT_INVALID_ARGUMENT) {
  throw Exception(message, code);
}

}  // namespace detail

/// Throws what a status says, and frees it.
inline void ThrowOnError(OrtStatus* status) {
  if (!status) return;
  const OrtStatus kept = *status;
  delete status;
  throw Exception(kept.message, kept.code);
}

/// A status that is owned.
class Status {
 public:
  Status() noexcept = default;
  explicit Status(std::nullptr_t) noexcept {}
  explicit Status(OrtStatus* status) noexcept : status_(status) {}
  explicit Status(const Exception& error)
      : status_(new OrtStatus{error.GetOrtErrorCode(), error.what()}) {}
  explicit Status(const std::exception& error) : status_(new OrtStatus{ORT_FAIL, error.what()}) {}
  Status(const char* message, OrtErrorCode code) : status_(new OrtStatus{code, message}) {}

  std::string GetErrorMessage() const { return status_ ? status_->message : std::string(); }
  OrtErrorCode GetErrorCode() const { return status_ ? status_->code : ORT_OK; }
  bool IsOK() const noexcept { return status_ == nullptr; }
  OrtStatus* release() { return status_.release(); }

 private:
  std::unique_ptr<OrtStatus> status_;
};

}  // namespace Ort
