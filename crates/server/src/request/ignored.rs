//! Fields that cannot change an answer: clients send them, and they are skipped. Any other unknown field is
//! refused by name, or skipped with a warning if the server is configured to.

/// The object that a field is a member of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    /// The body of a request.
    Body,
    /// A message of a conversation, or an item of a response's input.
    Message,
    /// A part of a message's content.
    Part,
    /// A question of a decision, and its options.
    Question,
    /// A tool that is offered.
    Tool,
    /// The function of an offered tool.
    Function,
    /// A tool call of an earlier message, and its function.
    Call,
    /// The body of a batch, and its `output_expires_after`.
    Batch,
    /// `stream_options`
    StreamOptions,
    /// `reasoning`
    Reasoning,
    /// `response_format`, `structured_outputs`
    Format,
    /// `options` of Ollama's API: how its server would load the model, and what it ignores itself.
    OllamaOptions,
}

/// All fields that are skipped.
pub(crate) const IGNORED: &[(Object, &[&str])] = &[
    (
        Object::Body,
        &[
            "cache_control",
            "cache_prompt",
            "cache_salt",
            "client_metadata",
            "context_management",
            "diagnostics",
            "id",
            "id_slot",
            "inference_geo",
            "keep_alive",
            "litellm_metadata",
            "metadata",
            "moderation",
            "num_ctx",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "provider",
            "request_id",
            "return_progress",
            "safety_identifier",
            "service_tier",
            "session_id",
            "spaces_between_special_tokens",
            "speculative.n_min",
            "speculative.p_min",
            "speed",
            "store",
            "timestamp",
            "timings_per_token",
            "trace",
            "transforms",
            "usage",
            "user",
            "user_id",
            "user_profile_id",
            "verbosity",
            "workspace_id",
        ],
    ),
    (
        Object::Message,
        &[
            "annotations",
            "cache_control",
            "created_at",
            "id",
            "metadata",
            "phase",
            "provider_specific_fields",
            "reasoning_details",
            "refusal",
            "status",
            "thinking_blocks",
            "timestamp",
        ],
    ),
    (
        Object::Part,
        &[
            "annotations",
            "cache_control",
            "citations",
            "id",
            "logprobs",
            "prompt_cache_breakpoint",
            "signature",
        ],
    ),
    (
        Object::Tool,
        &["allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples"],
    ),
    (Object::Function, &["cache_control", "output_schema"]),
    (Object::Call, &["cache_control", "caller", "extra_content", "index", "provider_specific_fields"]),
    (Object::StreamOptions, &["include_obfuscation"]),
    (Object::Reasoning, &["context", "generate_summary", "mode", "summary"]),
    (Object::Format, &["disable_fallback"]),
    (
        Object::OllamaOptions,
        &[
            "embedding_only",
            "f16_kv",
            "logits_all",
            "low_vram",
            "main_gpu",
            "num_batch",
            "num_ctx",
            "num_gpu",
            "num_keep",
            "num_thread",
            "numa",
            "penalize_newline",
            "use_mlock",
            "use_mmap",
            "vocab_only",
        ],
    ),
];

impl Object {
    /// The fields of this object that are skipped.
    pub(crate) fn ignored(self) -> &'static [&'static str] {
        IGNORED.iter().find(|(object, _)| *object == self).map_or(&[], |(_, names)| names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_field() {
        let docs = include_str!("../../../../docs/api.md");
        for (object, names) in IGNORED {
            assert!(names.is_sorted(), "{object:?}");
            for name in *names {
                assert!(docs.contains(&format!("`{name}`")), "docs/api.md does not mention {name}");
            }
        }
    }
}
