// Errors of the engine as errors of the public C++ API.
#pragma once

#include <ortmodule/inference.h>

#include <new>
#include <string>

#include "base/error.h"

namespace ortmodule::inference {

/// The code of an engine's error, by the place that its message names.
ErrorCode code_of(const std::string& message);

/// Calls `body`; whatever it throws leaves as Error.
template <class Body>
auto translated(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const ortmodule::Error& error) {
    throw Error(code_of(error.what()), error.what());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::OutOfMemory,
                "[memory] the system has no memory left: run smaller inputs");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Internal, error.what());
  }
}

}  // namespace ortmodule::inference
