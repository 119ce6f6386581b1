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
  if (profile) profile->write(path);
  return profile != nullptr;
}

}  // namespace ortmodule
