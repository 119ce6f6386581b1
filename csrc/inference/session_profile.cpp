// Traces of the runs of a session.
#include "inference/inference_session.h"
#include "inference/profile.h"

namespace ortmodule {

void InferenceSession::start_profiling() {
  profile_ =
      std::make_shared<Profile>(host_.device ? "CUDAExecutionProvider" : "CPUExecutionProvider");
}

int64_t InferenceSession::profiling_start_ns() const {
  const std::shared_ptr<Profile> profile = profile_.load();
  return profile ? profile->start_ns() : 0;
}

bool InferenceSession::end_profiling(const std::string& path) {
  const std::shared_ptr<Profile> profile = profile_.exchange(nullptr);
  if (!profile) return false;
  try {
    profile->write(path);
  } catch (...) {  // another call may find a place for it
    std::shared_ptr<Profile> none;
    profile_.compare_exchange_strong(none, profile);
    throw;
  }
  return true;
}

}  // namespace ortmodule
