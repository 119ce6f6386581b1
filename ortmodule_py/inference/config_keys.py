"""Keys of configuration entries of sessions and runs, as onnxruntime names them."""

from __future__ import annotations

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
EXTERNAL_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"

# What an entry changes here; those without a text are accepted with a notice.
SESSION_KEYS = {
    "optimization.disable_specified_optimizers": "passes that do not run, separated by ';'",
    "session.disable_cpu_ep_fallback": "'1': an absent provider is an error",
    "session.load_model_format": "'ONNX' only",
    "session.memory_limit": "the most bytes of the weights and all runs, as text such as '512MiB'",
    "session.model_external_initializers_file_folder_path": "folder of external data of models "
    "in memory",
    EXTERNAL_FILE: "file beside the optimized model that its weights go to",
    EXTERNAL_BYTES: "the least bytes of a weight that goes there, 1024",
    **dict.fromkeys(
        [
            "ep.context_embed_mode",
            "ep.context_enable",
            "ep.context_file_path",
            "ep.context_model_external_initializers_file_name",
            "ep.context_node_name_prefix",
            "ep.dynamic.workload_type",
            "ep.share_ep_contexts",
            "ep.stop_share_ep_contexts",
            "mlas.disable_kleidiai",
            "mlas.enable_gemm_fastmath_arm64_bfloat16",
            "mlas.use_lut_gemm",
            "optimization.disable_avg_pool_fusion",
            "optimization.enable_cast_chain_elimination",
            "optimization.enable_gelu_approximation",
            "optimization.memory_optimizer_config",
            "optimization.minimal_build_optimizations",
            "session.allow_released_opsets_only",
            "session.collect_node_memory_stats_to_file",
            "session.debug_layout_transformation",
            "session.disable_aot_function_inlining",
            "session.disable_double_qdq_remover",
            "session.disable_model_compile",
            "session.disable_prepacking",
            "session.disable_qdq_constant_folding",
            "session.disable_quant_qdq",
            "session.dynamic_block_base",
            "session.enable_dq_matmulnbits_fusion",
            "session.enable_quant_qdq_cleanup",
            "session.fail_on_suboptimal_compiled_model",
            "session.force_spinning_stop",
            "session.inter_op.allow_spinning",
            "session.intra_op.allow_spinning",
            "session.intra_op_thread_affinities",
            "session.node_partition_config_file",
            "session.qdq_matmulnbits_accuracy_level",
            "session.qdqisint8allowed",
            "session.record_ep_graph_assignment_info",
            "session.resource_cuda_partitioning_settings",
            "session.save_external_prepacked_constant_initializers",
            "session.save_model_format",
            "session.set_denormal_as_zero",
            "session.strict_shape_type_inference",
            "session.use_device_allocator_for_initializers",
            "session.use_env_allocators",
            "session.use_memory_mapped_ort_model",
            "session.use_ort_model_bytes_directly",
            "session.use_ort_model_bytes_for_initializers",
            "session_options.ep_context_model_external_initializers_file_name",
        ],
        "",
    ),
}

RUN_KEYS = {
    "memory.enable_memory_arena_shrinkage": "'cpu:0': the block goes back to the system at the end "
    "of the run",
    **dict.fromkeys(
        [
            "disable_synchronize_execution_providers",
            "ep.dynamic.workload_type",
            "gpu_graph_id",
            "qnn.htp_perf_mode",
            "qnn.htp_perf_mode_post_run",
            "qnn.lora_config",
            "qnn.rpc_control_latency",
        ],
        "",
    ),
}
