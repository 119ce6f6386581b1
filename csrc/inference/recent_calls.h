// The plans of the last calls, found by comparing feeds: no symbol is bound, no key is made.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "importer/import_model.h"
#include "inference/host_tensor.h"
#include "inference/unread_sizes.h"
#include "session/planner.h"

namespace ortmodule {

/// The bytes that a feed must hold from an offset on.
struct FeedContent {
  size_t tensor = 0;  // of all tensors of the feeds, in order
  int64_t offset_bytes = 0;
  std::string bytes;
};

/// A call with its plan, which it does not keep alive.
struct RecentCall {
  std::vector<ValueForm> forms;
  std::vector<HostTensorView> tensors;  // types, sizes (-1: any) and strides
  std::vector<FeedContent> contents;    // all that import and plan depend on
  std::shared_ptr<void> outcome;
  std::weak_ptr<PlanEntry> entry;

  bool fits(const std::vector<ValueForm>& forms, const std::vector<HostTensorView>& tensors) const;
};

/// Thread-safe.
class RecentCalls {
 public:
  struct Found {
    std::shared_ptr<void> outcome;  // as it was added
    std::shared_ptr<PlanEntry> entry;
  };

  /// The outcome and plan of a call with feeds of the same forms, types, sizes and contents; null
  /// if there was none, or its plan is gone or outdated.
  Found find(const std::vector<ValueForm>& forms, const std::vector<HostTensorView>& tensors);
  void add(RecentCall call, const UnreadSizes& unread);
  void clear();

 private:
  std::mutex mutex_;
  std::list<RecentCall> calls_;  // the most recently used one first
};

}  // namespace ortmodule
