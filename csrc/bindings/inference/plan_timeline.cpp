#include "bindings/inference/plan_timeline.h"

#include "bindings/casts/sizes.h"
#include "inference/host_run.h"
#include "plan/replay.h"
#include "plan/timeline.h"

namespace py = pybind11;

namespace ortmodule::bindings {

py::dict plan_timeline(const Plan& plan) {
  const BufferId block = block_of(plan);
  py::list storages;
  for (const TimelineItem& live : timeline_of(plan)) {
    const PlannedStorage& storage = plan.storages[live.storage];
    py::dict item;
    item["name"] = storage.name.text();
    item["op"] = live.producer ? live.producer->op : "workspace";
    item["node"] = live.producer ? live.producer->origin.module : "";
    item["bytes"] = live.bytes;
    item["first_step"] = live.first_step;
    item["last_step"] = live.last_step;
    item["kind"] = live.producer ? role_name(storage.role) : "workspace";
    item["offset_bytes"] =
        block && storage.buffer == block ? py::object(py::int_(storage.offset_bytes)) : py::none();
    storages.append(item);
  }
  py::dict result;
  result["storages"] = storages;
  result["steps"] = plan.steps.size();
  result["peak_bytes"] = plan.forward_peak_bytes;
  result["peak_step"] = plan.peak_step;
  result["block_bytes"] = block ? plan.buffers[block].bytes : 0;
  result["live_bytes"] = live_bytes(plan, ReplayMode::Once);
  return result;
}

}  // namespace ortmodule::bindings
