//! Names that people type for popular models, such as `llama3.2:1b`, and the files of the hub that they mean.
//!
//! A name without a size is the size that other programs give it. What is not in the table is loaded as
//! `org/repo[:QUANT]`.

/// A file of the hub with short names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// The names; the first one is listed.
    pub names: &'static [&'static str],
    /// A one-line description.
    pub about: &'static str,
    /// `org/repo`.
    pub repo: &'static str,
    /// The file in it, or its quantization if commits name the file differently.
    pub file: &'static str,
    /// Its size in bytes to about 1 %: a later commit may have another file of this name.
    pub bytes: u64,
}

impl Short {
    /// The model of this name; `:latest` may follow a name without a size.
    pub fn named(name: &str) -> Option<&'static Short> {
        Short::entry(name).map(|(_, short)| short)
    }

    /// The same with the name as the table has it.
    pub(crate) fn entry(name: &str) -> Option<(&'static str, &'static Short)> {
        let name = name.strip_suffix(":latest").filter(|name| !name.contains(':')).unwrap_or(name);
        let mut all = SHORT.iter().flat_map(|short| short.names.iter().map(move |name| (*name, short)));
        all.find(|(known, _)| *known == name)
    }

    /// `0.81 GB`
    pub(crate) fn size(&self) -> String {
        let gigabytes = self.bytes as f64 / 1e9;
        if gigabytes < 10.0 { format!("{gigabytes:.2} GB") } else { format!("{gigabytes:.1} GB") }
    }
}

const fn short(
    names: &'static [&'static str],
    about: &'static str,
    repo: &'static str,
    file: &'static str,
    bytes: u64,
) -> Short {
    Short { names, about, repo, file, bytes }
}

/// The table.
#[rustfmt::skip]
pub const SHORT: &[Short] = &[
    short(&["llama3.2", "llama3.2:3b"], "Llama 3.2 3B Instruct, Q4_K_M",
        "bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf", 2_019_377_696),
    short(&["llama3.2:1b"], "Llama 3.2 1B Instruct, Q4_K_M",
        "bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", 807_694_464),
    short(&["llama3.1", "llama3.1:8b"], "Llama 3.1 8B Instruct, Q4_K_M",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", 4_920_739_232),
    short(&["llama3.3", "llama3.3:70b"], "Llama 3.3 70B Instruct, Q4_K_M",
        "bartowski/Llama-3.3-70B-Instruct-GGUF", "Llama-3.3-70B-Instruct-Q4_K_M.gguf", 42_520_398_816),
    short(&["qwen3", "qwen3:8b"], "Qwen3 8B, Q4_K_M",
        "Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", 5_027_783_488),
    short(&["qwen3:0.6b"], "Qwen3 0.6B, Q8_0",
        "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 639_446_688),
    short(&["qwen3:1.7b"], "Qwen3 1.7B, Q8_0",
        "Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf", 1_834_426_016),
    short(&["qwen3:4b"], "Qwen3 4B, Q4_K_M",
        "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", 2_497_280_256),
    short(&["qwen3:14b"], "Qwen3 14B, Q4_K_M",
        "Qwen/Qwen3-14B-GGUF", "Qwen3-14B-Q4_K_M.gguf", 9_001_752_960),
    short(&["qwen3:30b", "qwen3:30b-a3b"], "Qwen3 30B-A3B, a mixture of experts, Q4_K_M",
        "Qwen/Qwen3-30B-A3B-GGUF", "Qwen3-30B-A3B-Q4_K_M.gguf", 18_556_685_824),
    short(&["qwen3-coder", "qwen3-coder:30b"], "Qwen3 Coder 30B-A3B Instruct, a mixture of experts, Q4_K_M",
        "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf", 18_556_700_000),
    short(&["qwen3.5", "qwen3.5:4b"], "Qwen3.5 4B, Q4_K_M",
        "unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf", 2_740_937_888),
    short(&["qwen3.5:2b"], "Qwen3.5 2B, Q4_K_M",
        "unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B-Q4_K_M.gguf", 1_280_835_840),
    short(&["qwen3.6", "qwen3.6:35b"], "Qwen3.6 35B-A3B, a mixture of experts, UD-Q4_K_M",
        "unsloth/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf", 22_134_528_992),
    short(&["qwen3.8", "qwen3.8:27b"], "Qwen3.8 27B, UD-Q4_K_M",
        "unsloth/Qwen3.8-27B-GGUF", "Qwen3.8-27B-UD-Q4_K_M.gguf", 16_464_440_224),
    short(&["qwen2.5", "qwen2.5:7b"], "Qwen2.5 7B Instruct, Q4_K_M",
        "bartowski/Qwen2.5-7B-Instruct-GGUF", "Qwen2.5-7B-Instruct-Q4_K_M.gguf", 4_683_074_240),
    short(&["qwen2.5:0.5b"], "Qwen2.5 0.5B Instruct, Q4_K_M",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf", 491_400_032),
    short(&["qwen2.5:1.5b"], "Qwen2.5 1.5B Instruct, Q4_K_M",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "qwen2.5-1.5b-instruct-q4_k_m.gguf", 1_117_320_736),
    short(&["qwen2.5:3b"], "Qwen2.5 3B Instruct, Q4_K_M",
        "Qwen/Qwen2.5-3B-Instruct-GGUF", "qwen2.5-3b-instruct-q4_k_m.gguf", 2_104_932_768),
    short(&["qwen2.5-coder", "qwen2.5-coder:7b"], "Qwen2.5 Coder 7B Instruct, Q4_K_M",
        "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", "qwen2.5-coder-7b-instruct-q4_k_m.gguf", 4_683_073_536),
    short(&["qwen2.5-coder:1.5b"], "Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1_117_320_768),
    short(&["gemma3", "gemma3:4b"], "Gemma 3 4B, Q4_K_M",
        "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf", 2_489_757_856),
    short(&["gemma3:1b"], "Gemma 3 1B, Q4_K_M",
        "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806_058_240),
    short(&["gemma3:12b"], "Gemma 3 12B, Q4_K_M",
        "bartowski/google_gemma-3-12b-it-GGUF", "google_gemma-3-12b-it-Q4_K_M.gguf", 7_300_575_264),
    short(&["gemma2", "gemma2:9b"], "Gemma 2 9B, Q4_K_M",
        "bartowski/gemma-2-9b-it-GGUF", "gemma-2-9b-it-Q4_K_M.gguf", 5_761_057_728),
    short(&["gemma2:2b"], "Gemma 2 2B, Q4_K_M",
        "bartowski/gemma-2-2b-it-GGUF", "gemma-2-2b-it-Q4_K_M.gguf", 1_708_582_752),
    short(&["gpt-oss", "gpt-oss:20b"], "gpt-oss 20B, a mixture of experts, MXFP4",
        "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_109_566_560),
    short(&["gpt-oss:120b"], "gpt-oss 120B, a mixture of experts, MXFP4",
        "ggml-org/gpt-oss-120b-GGUF", "MXFP4", 63_387_346_208),
    short(&["phi4", "phi4:14b"], "Phi 4 14B, Q4_K_M",
        "bartowski/phi-4-GGUF", "phi-4-Q4_K_M.gguf", 9_053_114_816),
    short(&["phi4-mini"], "Phi 4 mini, Q4_K_M",
        "bartowski/microsoft_Phi-4-mini-instruct-GGUF", "microsoft_Phi-4-mini-instruct-Q4_K_M.gguf", 2_491_874_688),
    short(&["phi3.5"], "Phi 3.5 mini, Q4_K_M",
        "bartowski/Phi-3.5-mini-instruct-GGUF", "Phi-3.5-mini-instruct-Q4_K_M.gguf", 2_393_232_672),
    short(&["mistral", "mistral:7b"], "Mistral 7B Instruct 0.3, Q4_K_M",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf", 4_372_812_000),
    short(&["ministral-3", "ministral-3:3b"], "Ministral 3 3B Instruct, Q4_K_M",
        "mistralai/Ministral-3-3B-Instruct-2512-GGUF", "Ministral-3-3B-Instruct-2512-Q4_K_M.gguf", 2_147_023_008),
    short(&["smollm2:360m"], "SmolLM2 360M Instruct, Q8_0",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "smollm2-360m-instruct-q8_0.gguf", 386_404_992),
    short(&["smollm2:1.7b"], "SmolLM2 1.7B Instruct, Q4_K_M",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "smollm2-1.7b-instruct-q4_k_m.gguf", 1_055_609_536),
    short(&["smollm3"], "SmolLM3 3B, Q4_K_M",
        "ggml-org/SmolLM3-3B-GGUF", "SmolLM3-Q4_K_M.gguf", 1_915_305_312),
    short(&["bonsai", "bonsai:8b"], "Bonsai 8B with 1-bit weights, Q1_0",
        "prism-ml/Bonsai-8B-gguf", "Bonsai-8B-Q1_0.gguf", 1_158_654_496),
    short(&["bonsai:4b"], "Bonsai 4B with 1-bit weights, Q1_0",
        "prism-ml/Bonsai-4B-gguf", "Bonsai-4B-Q1_0.gguf", 572_270_624),
    short(&["bonsai:1.7b"], "Bonsai 1.7B with 1-bit weights, Q1_0",
        "prism-ml/Bonsai-1.7B-gguf", "Bonsai-1.7B-Q1_0.gguf", 248_302_272),
    short(&["bonsai:27b"], "Bonsai 27B with 1-bit weights, Q1_0",
        "prism-ml/Bonsai-27B-gguf", "Bonsai-27B-Q1_0.gguf", 3_803_452_480),
    short(&["bonsai2", "bonsai2:27b"], "Bonsai 2 27B with ternary weights, PQ2_0",
        "prism-ml/Ternary-Bonsai-2-27B-gguf", "Ternary-Bonsai-2-27B-PQ2_0.gguf", 7_206_168_928),
    short(&["tinyllama"], "TinyLlama 1.1B Chat, Q4_K_M",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf", 668_788_096),
    short(&["granite4", "granite4:micro"], "Granite 4.0 Micro, Q4_K_M",
        "ibm-granite/granite-4.0-micro-GGUF", "granite-4.0-micro-Q4_K_M.gguf", 2_099_502_528),
    short(&["granite3.3:2b"], "Granite 3.3 2B Instruct, Q4_K_M",
        "ibm-granite/granite-3.3-2b-instruct-GGUF", "granite-3.3-2b-instruct-Q4_K_M.gguf", 1_545_303_328),
    short(&["lfm2.5", "lfm2.5:1.2b"], "LFM2.5 1.2B Instruct, Q4_K_M",
        "LiquidAI/LFM2.5-1.2B-Instruct-GGUF", "LFM2.5-1.2B-Instruct-Q4_K_M.gguf", 730_895_168),
    short(&["nomic-embed-text"], "nomic-embed-text 1.5, for embeddings, F16",
        "nomic-ai/nomic-embed-text-v1.5-GGUF", "nomic-embed-text-v1.5.f16.gguf", 274_290_560),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KNOWN;

    #[test]
    fn a_name_means_one_file_of_one_repository() {
        let mut names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        names.extend(SHORT.iter().flat_map(|short| short.names));
        assert!(names.len() > 60, "{}", names.len());
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name} twice");
            assert!(!name.contains('/') && !name.ends_with(".gguf"), "{name} could be parsed as a path");
        }
        for short in SHORT {
            let typed = crate::name::Name::parse(&format!("{}:{}", short.repo, short.file)).unwrap();
            assert_eq!(typed, crate::name::Name::Repo(short.repo()), "a valid name of the hub");
            assert!(short.bytes > 100_000_000, "{short:?}");
            let format = short.about.rsplit(' ').next().unwrap();
            assert!(
                short.file.to_uppercase().contains(format),
                "{}: {} is not the format of {}",
                short.names[0],
                format,
                short.file
            );
        }
    }

    #[test]
    fn latest_is_the_name_without_a_size() {
        assert_eq!(Short::named("qwen3:latest"), Short::named("qwen3"));
        assert_eq!(Short::named("qwen3").map(|short| short.file), Some("Qwen3-8B-Q4_K_M.gguf"));
        assert_eq!(Short::named("qwen3:0.6b:latest"), None);
        assert_eq!(Short::named("qwen3:9b"), None);
        assert_eq!(Short::named("gemma3:1b").unwrap().size(), "0.81 GB");
        assert_eq!(Short::named("gpt-oss").unwrap().size(), "12.1 GB");
    }
}
