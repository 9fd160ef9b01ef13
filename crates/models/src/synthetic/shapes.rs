//! Shapes of well-known models, to be filled with random weights.

use tern_formats::{Metadata, Value};

use crate::architectures::{dense, encoders, experts, recurrent};
use crate::{Arch, Model, Number, Source, Synthetic, prism};

/// The sizes of a model, without its weights.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The name on the command line.
    pub name: &'static str,
    /// Architecture.
    pub arch: &'static Arch,
    /// Layers.
    pub layers: usize,
    /// Columns of the residual stream.
    pub width: usize,
    /// Columns inside the MLP.
    pub ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// The head is the embedding table.
    pub tied: bool,
    /// Longest sequence.
    pub context: usize,
    /// Rotation base.
    pub rope_base: f32,
    /// YaRN factor over the original context, 1 for none.
    pub yarn: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Experts instead of the MLP.
    pub experts: Option<ShapeExperts>,
    /// The window of local layers, if not the tiny one of tests.
    pub window: Option<usize>,
    /// What its file has beyond the common keys and tensors, if not the same as other
    /// shapes of the architecture.
    pub synthetic: Option<&'static Synthetic>,
}

/// The experts of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeExperts {
    /// Experts per layer.
    pub count: usize,
    /// Experts per token.
    pub used: usize,
    /// Columns inside each.
    pub ff: usize,
}

const BONSAI_8B: Shape = Shape {
    name: "bonsai-8b",
    arch: &dense::qwen3::QWEN3,
    layers: 36,
    width: 4096,
    ff: 12288,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
    tied: false,
    context: 65_536,
    rope_base: 1e6,
    yarn: 4,
    eps: 1e-6,
    experts: None,
    window: None,
    synthetic: None,
};

const TINY: Shape = Shape {
    name: "tiny-qwen3",
    arch: &dense::qwen3::QWEN3,
    layers: 3,
    width: 256,
    ff: 512,
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    vocab: 4096,
    tied: true,
    context: 512,
    rope_base: 1e4,
    yarn: 1,
    eps: 1e-6,
    experts: None,
    window: None,
    synthetic: None,
};

const QWEN35_0_8B: Shape = Shape {
    name: "qwen3.5-0.8b",
    arch: &recurrent::qwen35::QWEN35,
    layers: 24,
    width: 1024,
    ff: 3584,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    vocab: 248_320,
    tied: true,
    context: 262_144,
    rope_base: 1e7,
    yarn: 1,
    synthetic: Some(&recurrent::qwen35::SIZES_0_8B),
    ..BONSAI_8B
};

const TINY_QWEN35: Shape = Shape { name: "tiny-qwen35", arch: &recurrent::qwen35::QWEN35, layers: 4, ..TINY };

const TINY_LFM2: Shape =
    Shape { name: "tiny-lfm2", arch: &recurrent::lfm2::LFM2, layers: 4, head_dim: 32, ..TINY };

const TINY_EXPERTS: Option<ShapeExperts> = Some(ShapeExperts { count: 8, used: 3, ff: 192 });

/// Every shape by name. The tiny and small ones are for tests.
pub static SHAPES: &[Shape] = &[
    BONSAI_8B,
    Shape { name: "bonsai-4b", width: 2560, ff: 9728, tied: true, context: 32_768, yarn: 1, ..BONSAI_8B },
    Shape {
        name: "bonsai-1.7b",
        layers: 28,
        width: 2048,
        ff: 6144,
        heads: 16,
        tied: true,
        context: 32_768,
        yarn: 1,
        ..BONSAI_8B
    },
    Shape {
        name: "qwen3-0.6b",
        layers: 28,
        width: 1024,
        ff: 3072,
        heads: 16,
        tied: true,
        context: 40_960,
        yarn: 1,
        ..BONSAI_8B
    },
    Shape {
        name: "llama3-8b",
        arch: &dense::llama::LLAMA,
        layers: 32,
        ff: 14_336,
        vocab: 128_256,
        context: 8192,
        rope_base: 5e5,
        yarn: 1,
        eps: 1e-5,
        ..BONSAI_8B
    },
    Shape {
        name: "smollm2-135m",
        arch: &dense::llama::LLAMA,
        layers: 30,
        width: 576,
        ff: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocab: 49_152,
        tied: true,
        context: 8192,
        rope_base: 1e5,
        yarn: 1,
        eps: 1e-5,
        experts: None,
        window: None,
        synthetic: None,
    },
    Shape {
        name: "qwen3-30b-a3b",
        arch: &experts::qwen3moe::QWEN3MOE,
        layers: 48,
        width: 2048,
        ff: 6144,
        kv_heads: 4,
        context: 40_960,
        yarn: 1,
        experts: Some(ShapeExperts { count: 128, used: 8, ff: 768 }),
        ..BONSAI_8B
    },
    Shape {
        name: "gpt-oss-20b",
        arch: &experts::gpt_oss::GPT_OSS,
        layers: 24,
        width: 2880,
        ff: 2880,
        heads: 64,
        head_dim: 64,
        vocab: 201_088,
        context: 131_072,
        rope_base: 1.5e5,
        yarn: 32,
        eps: 1e-5,
        experts: Some(ShapeExperts { count: 32, used: 4, ff: 2880 }),
        window: Some(128),
        ..BONSAI_8B
    },
    Shape {
        name: "maple-20b-a1b",
        arch: &experts::maple::MAPLE,
        layers: 24,
        width: 2048,
        ff: 6144,
        heads: 16,
        kv_heads: 4,
        context: 32_768,
        yarn: 1,
        experts: Some(ShapeExperts { count: 256, used: 8, ff: 512 }),
        window: Some(512),
        ..BONSAI_8B
    },
    Shape {
        name: "minilm-l6", // all-MiniLM-L6-v2
        arch: &encoders::bert::BERT,
        layers: 6,
        width: 384,
        ff: 1536,
        heads: 12,
        kv_heads: 12,
        head_dim: 32,
        vocab: 30_522,
        tied: true,
        context: 512,
        yarn: 1,
        eps: 1e-12,
        ..BONSAI_8B
    },
    Shape {
        name: "moe-1b", // small enough for a few CPU cores
        arch: &experts::qwen3moe::QWEN3MOE,
        layers: 16,
        width: 1024,
        ff: 3072,
        heads: 16,
        kv_heads: 4,
        head_dim: 64,
        vocab: 32_768,
        tied: true,
        context: 8192,
        yarn: 1,
        experts: Some(ShapeExperts { count: 32, used: 4, ff: 512 }),
        ..BONSAI_8B
    },
    Shape {
        name: "deepseek-v2-lite",
        arch: &experts::deepseek2::DEEPSEEK2,
        layers: 27,
        width: 2048,
        ff: 10_944,
        heads: 16,
        kv_heads: 1,
        vocab: 102_400,
        context: 163_840,
        rope_base: 1e4,
        yarn: 40,
        experts: Some(ShapeExperts { count: 64, used: 6, ff: 1408 }),
        synthetic: Some(&experts::deepseek2::V2_LITE),
        ..BONSAI_8B
    },
    Shape {
        name: "glm-4.7-flash",
        arch: &experts::deepseek2::DEEPSEEK2,
        layers: 47,
        width: 2048,
        ff: 10_240,
        heads: 20,
        kv_heads: 1,
        vocab: 154_880,
        context: 202_752,
        yarn: 1,
        eps: 1e-5,
        experts: Some(ShapeExperts { count: 64, used: 4, ff: 1536 }),
        synthetic: Some(&experts::deepseek2::GLM_FLASH),
        ..BONSAI_8B
    },
    Shape {
        name: "gemma4-26b-a4b",
        arch: &dense::gemma4::GEMMA4,
        layers: 30,
        width: 2816,
        ff: 2112,
        heads: 16,
        kv_heads: 8,
        head_dim: 512,
        vocab: 262_144,
        tied: true,
        context: 131_072,
        yarn: 1,
        experts: Some(ShapeExperts { count: 128, used: 8, ff: 704 }),
        window: Some(1024),
        synthetic: Some(&dense::gemma4::SIZES_26B),
        ..BONSAI_8B
    },
    QWEN35_0_8B,
    Shape {
        name: "granite-4.0-h-tiny",
        arch: &recurrent::granite_hybrid::GRANITE_HYBRID,
        layers: 40,
        width: 1536,
        ff: 512,
        heads: 12,
        kv_heads: 4,
        vocab: 100_352,
        tied: true,
        context: 131_072,
        rope_base: 1e4,
        yarn: 1,
        eps: 1e-5,
        experts: Some(ShapeExperts { count: 64, used: 6, ff: 512 }),
        synthetic: Some(&recurrent::granite_hybrid::SIZES_TINY),
        ..BONSAI_8B
    },
    Shape {
        name: "falcon-h1-0.5b",
        arch: &recurrent::falcon_h1::FALCON_H1,
        layers: 36,
        width: 1024,
        ff: 2048,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        vocab: 32_784,
        context: 16_384,
        rope_base: 1e11,
        yarn: 1,
        eps: 1e-5,
        synthetic: Some(&recurrent::falcon_h1::SIZES_0_5B),
        ..BONSAI_8B
    },
    Shape {
        name: "nemotron-3-nano-30b",
        arch: &recurrent::nemotron_h::NEMOTRON_H_MOE,
        layers: 52,
        width: 2688,
        ff: 1856,
        heads: 32,
        kv_heads: 2,
        vocab: 131_072,
        context: 262_144,
        rope_base: 1e4,
        yarn: 1,
        eps: 1e-5,
        experts: Some(ShapeExperts { count: 128, used: 6, ff: 1856 }),
        synthetic: Some(&recurrent::nemotron_h::SIZES_30B),
        ..BONSAI_8B
    },
    Shape {
        name: "bonsai-27b",
        layers: 64,
        width: 5120,
        ff: 17_408,
        heads: 24,
        kv_heads: 4,
        tied: false,
        synthetic: Some(&recurrent::qwen35::SIZES_27B),
        ..QWEN35_0_8B
    },
    Shape {
        name: "bonsai2-27b",
        layers: 64,
        width: 5120,
        ff: 17_408,
        heads: 24,
        kv_heads: 4,
        tied: false,
        synthetic: Some(&recurrent::qwen35::ROTATED_27B),
        ..QWEN35_0_8B
    },
    Shape {
        name: "small-bonsai2",
        layers: 2,
        ff: 7168,
        heads: 4,
        vocab: 4096,
        context: 512,
        tied: false,
        synthetic: Some(&recurrent::qwen35::ROTATED_SMALL),
        ..QWEN35_0_8B
    },
    TINY,
    TINY_QWEN35,
    Shape {
        name: "tiny-bonsai2",
        tied: false,
        synthetic: Some(&recurrent::qwen35::ROTATED_TINY),
        ..TINY_QWEN35
    },
    Shape {
        name: "tiny-qwen35moe",
        arch: &recurrent::qwen35::QWEN35_MOE,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY_QWEN35
    },
    Shape {
        name: "tiny-qwen3next",
        arch: &recurrent::qwen3next::QWEN3_NEXT,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY_QWEN35
    },
    TINY_LFM2,
    Shape { name: "tiny-lfm2-embedding", synthetic: Some(&recurrent::lfm2::EMBEDDING), ..TINY_LFM2 },
    Shape { name: "tiny-lfm2-colbert", synthetic: Some(&recurrent::lfm2::COLBERT), ..TINY_LFM2 },
    Shape {
        name: "tiny-lfm2moe",
        arch: &recurrent::lfm2::LFM2_MOE,
        layers: 4,
        head_dim: 32,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-granitehybrid",
        arch: &recurrent::granite_hybrid::GRANITE_HYBRID,
        layers: 4,
        head_dim: 32,
        ff: 192,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-granitehybrid-dense",
        arch: &recurrent::granite_hybrid::GRANITE_HYBRID,
        layers: 4,
        head_dim: 32,
        synthetic: Some(&recurrent::granite_hybrid::DENSE),
        ..TINY
    },
    Shape { name: "tiny-falcon-h1", arch: &recurrent::falcon_h1::FALCON_H1, tied: false, ..TINY },
    Shape {
        name: "tiny-nemotron_h",
        arch: &recurrent::nemotron_h::NEMOTRON_H,
        layers: 5,
        tied: false,
        ..TINY
    },
    Shape {
        name: "tiny-nemotron_h_moe",
        arch: &recurrent::nemotron_h::NEMOTRON_H_MOE,
        layers: 5,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape { name: "tiny-mamba2", arch: &recurrent::mamba::MAMBA2, tied: false, ..TINY },
    Shape { name: "tiny-yarn", tied: false, yarn: 4, context: 1024, ..TINY },
    Shape { name: "tiny-llama", arch: &dense::llama::LLAMA, head_dim: 32, ..TINY },
    Shape { name: "tiny-qwen2", arch: &dense::qwen2::QWEN2, head_dim: 32, ..TINY },
    Shape { name: "tiny-gemma3", arch: &dense::gemma3::GEMMA3, layers: 7, kv_heads: 4, ..TINY },
    Shape { name: "tiny-gemma4", arch: &dense::gemma4::GEMMA4, layers: 6, ..TINY },
    Shape {
        name: "tiny-gemma4-experts",
        arch: &dense::gemma4::GEMMA4,
        layers: 6,
        experts: TINY_EXPERTS,
        synthetic: Some(&dense::gemma4::WITH_EXPERTS),
        ..TINY
    },
    Shape { name: "tiny-phi3", arch: &dense::phi3::PHI3, head_dim: 32, tied: false, ..TINY },
    Shape { name: "tiny-qwen2vl", arch: &dense::qwen2vl::QWEN2VL, ..TINY },
    Shape { name: "tiny-qwen3vl", arch: &dense::qwen3vl::QWEN3VL, tied: false, ..TINY },
    Shape {
        name: "tiny-qwen3vlmoe",
        arch: &dense::qwen3vl::QWEN3VL_MOE,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape { name: "tiny-gemma2", arch: &dense::gemma2::GEMMA2, kv_heads: 4, ..TINY },
    Shape { name: "tiny-olmo2", arch: &dense::olmo2::OLMO2, layers: 5, head_dim: 32, tied: false, ..TINY },
    Shape { name: "tiny-exaone4", arch: &dense::exaone4::EXAONE4, head_dim: 32, tied: false, ..TINY },
    Shape {
        name: "tiny-exaone4-deep",
        arch: &dense::exaone4::EXAONE4,
        layers: 64,
        width: 64,
        ff: 128,
        heads: 4,
        head_dim: 16,
        tied: false,
        ..TINY
    },
    Shape { name: "tiny-glm4", arch: &dense::glm4::GLM4, head_dim: 32, tied: false, ..TINY },
    Shape { name: "tiny-seed_oss", arch: &dense::seed_oss::SEED_OSS, tied: false, ..TINY },
    Shape { name: "tiny-hunyuan", arch: &dense::hunyuan::HUNYUAN, tied: false, ..TINY },
    Shape { name: "tiny-ernie", arch: &dense::ernie::ERNIE, head_dim: 32, tied: false, ..TINY },
    Shape {
        name: "tiny-smollm3",
        arch: &dense::smollm3::SMOLLM3,
        layers: 5,
        head_dim: 32,
        tied: false,
        ..TINY
    },
    Shape {
        name: "tiny-mixtral",
        arch: &dense::llama::LLAMA,
        head_dim: 32,
        ff: 192,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-granitemoe",
        arch: &dense::granite::GRANITE_MOE,
        head_dim: 32,
        ff: 192,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-glm4moe",
        arch: &experts::glm4moe::GLM4_MOE,
        head_dim: 32,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-gpt-oss",
        arch: &experts::gpt_oss::GPT_OSS,
        tied: false,
        yarn: 4,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-maple",
        arch: &experts::maple::MAPLE,
        layers: 4,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape { name: "tiny-command-r", arch: &dense::cohere::COMMAND_R, head_dim: 32, ..TINY },
    Shape { name: "tiny-cohere2", arch: &dense::cohere::COHERE2, layers: 4, head_dim: 32, ..TINY },
    Shape { name: "tiny-jais2", arch: &dense::jais2::JAIS2, head_dim: 32, tied: false, ..TINY },
    Shape { name: "tiny-granite_swa", arch: &dense::granite::GRANITE_SWA, layers: 4, head_dim: 32, ..TINY },
    Shape {
        name: "tiny-muse-glimmer",
        arch: &dense::muse_glimmer::MUSE_GLIMMER,
        layers: 4,
        tied: false,
        ..TINY
    },
    Shape {
        name: "tiny-afmoe",
        arch: &experts::afmoe::AFMOE,
        layers: 4,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-mimo2",
        arch: &experts::mimo2::MIMO2,
        layers: 4,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape { name: "tiny-flint", arch: &experts::flint::FLINT, tied: false, experts: TINY_EXPERTS, ..TINY },
    Shape { name: "tiny-arcee", arch: &dense::arcee::ARCEE, head_dim: 32, tied: false, ..TINY },
    Shape { name: "tiny-starcoder2", arch: &dense::starcoder2::STARCODER2, head_dim: 32, ..TINY },
    Shape { name: "tiny-stablelm", arch: &dense::stablelm::STABLELM, head_dim: 32, tied: false, ..TINY },
    Shape { name: "tiny-olmoe", arch: &experts::olmoe::OLMOE, tied: false, experts: TINY_EXPERTS, ..TINY },
    Shape {
        name: "tiny-minimax-m2",
        arch: &experts::minimax_m2::MINIMAX_M2,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-hunyuan-moe",
        arch: &experts::hunyuan_moe::HUNYUAN_MOE,
        head_dim: 32,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-ernie4_5-moe",
        arch: &experts::ernie_moe::ERNIE_MOE,
        head_dim: 32,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-exaone-moe",
        arch: &experts::exaone_moe::EXAONE_MOE,
        layers: 4,
        head_dim: 32,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-hy_v3",
        arch: &experts::hunyuan3::HY_V3,
        head_dim: 32,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-mellum",
        arch: &experts::mellum::MELLUM,
        layers: 4,
        head_dim: 32,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-deepseek2",
        arch: &experts::deepseek2::DEEPSEEK2,
        kv_heads: 1,
        tied: false,
        yarn: 4,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape {
        name: "tiny-mistral4",
        arch: &experts::deepseek2::MISTRAL4,
        kv_heads: 1,
        tied: false,
        yarn: 4,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape { name: "tiny-bitnet", arch: &dense::bitnet::BITNET, head_dim: 32, ..TINY },
    Shape { name: "tiny-bitnet-b1.58", arch: &dense::bitnet::BITNET_B158, head_dim: 32, ..TINY },
    Shape { name: "tiny-mistral3", arch: &dense::mistral3::MISTRAL3, tied: false, yarn: 4, ..TINY },
    Shape {
        name: "tiny-qwen3moe",
        arch: &experts::qwen3moe::QWEN3MOE,
        tied: false,
        experts: TINY_EXPERTS,
        ..TINY
    },
    Shape { name: "tiny-bert", arch: &encoders::bert::BERT, kv_heads: 8, head_dim: 32, ..TINY },
    Shape {
        name: "tiny-bert-rank",
        arch: &encoders::bert::BERT,
        kv_heads: 8,
        head_dim: 32,
        synthetic: Some(&encoders::bert::RANKING),
        ..TINY
    },
    Shape { name: "tiny-nomic-bert", arch: &encoders::bert::NOMIC_BERT, kv_heads: 8, head_dim: 32, ..TINY },
    Shape {
        name: "tiny-nomic-bert-moe",
        arch: &encoders::bert::NOMIC_BERT_MOE,
        kv_heads: 8,
        head_dim: 32,
        experts: Some(ShapeExperts { count: 8, used: 2, ff: 512 }),
        ..TINY
    },
    Shape {
        name: "tiny-jina-bert-v2",
        arch: &encoders::bert::JINA_BERT_V2,
        kv_heads: 8,
        head_dim: 32,
        ..TINY
    },
    Shape {
        name: "tiny-jina-bert-v3",
        arch: &encoders::bert::JINA_BERT_V3,
        kv_heads: 8,
        head_dim: 32,
        ..TINY
    },
    Shape {
        name: "tiny-modern-bert",
        arch: &encoders::modern_bert::MODERN_BERT,
        layers: 4,
        kv_heads: 8,
        head_dim: 32,
        ..TINY
    },
    Shape {
        name: "tiny-gemma-embedding",
        arch: &encoders::gemma_embedding::GEMMA_EMBEDDING,
        layers: 7,
        kv_heads: 4,
        ..TINY
    },
    Shape { name: "tiny-eurobert", arch: &encoders::eurobert::EUROBERT, head_dim: 32, ..TINY },
    Shape { name: "tiny-llama-embed", arch: &encoders::eurobert::LLAMA_EMBED, head_dim: 32, ..TINY },
    Shape { name: "tiny-granite", arch: &dense::granite::GRANITE, head_dim: 32, tied: false, ..TINY },
];

impl Shape {
    /// What its file has beyond the common keys and tensors.
    pub fn synthetic(&self) -> &'static Synthetic {
        self.synthetic.unwrap_or(&self.arch.synthetic)
    }

    /// The shape with this name.
    pub fn by_name(name: &str) -> Option<&'static Shape> {
        SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(name))
    }

    /// The metadata of such a model, without a tokenizer.
    pub fn metadata(&self) -> Metadata {
        let mut m = self.plain_metadata();
        if let Some(block) = self.synthetic().rotated
            && let Ok(model) = Model::build(&m, self, None)
        {
            prism::synthetic_keys(&model.graph, block, &mut m);
        }
        m
    }

    fn plain_metadata(&self) -> Metadata {
        let mut m = Metadata::default();
        m.insert("general.architecture", Value::String(self.arch.name.into()));
        m.insert("general.name", Value::String("Random weights".into()));
        let mut put = |key: &str, value: Value| {
            m.insert(format!("{}.{key}", self.arch.name), value);
        };
        let number = |x: usize| Value::Uint(x as u64);
        put("context_length", number(self.context));
        put("embedding_length", number(self.width));
        put("block_count", number(self.layers));
        put("feed_forward_length", number(self.ff));
        put("attention.head_count", number(self.heads));
        put("attention.head_count_kv", number(self.kv_heads));
        put("attention.key_length", number(self.head_dim));
        put("attention.value_length", number(self.head_dim));
        let encoder = self.arch.synthetic.has_layer_norms;
        let eps = if encoder { "attention.layer_norm_epsilon" } else { "attention.layer_norm_rms_epsilon" };
        put(eps, Value::Float(f64::from(self.eps)));
        put("rope.dimension_count", number(self.head_dim));
        put("rope.freq_base", Value::Float(f64::from(self.rope_base)));
        if self.yarn > 1 {
            put("rope.scaling.type", Value::String("yarn".into()));
            put("rope.scaling.factor", Value::Float(self.yarn as f64));
            put("rope.scaling.original_context_length", number(self.context / self.yarn));
        }
        if let Some(experts) = self.experts {
            put("expert_count", number(experts.count));
            put("expert_used_count", number(experts.used));
            put("expert_feed_forward_length", number(experts.ff));
        }
        for (key, value) in self.synthetic().all_keys() {
            put(
                key,
                match value {
                    Number::Integer(value) => Value::Uint(value),
                    Number::Float(value) => Value::Float(value),
                    Number::Integers(values) => Value::Ints(values.to_vec()),
                    Number::Bool(value) => Value::Bool(value),
                    Number::Text(value) => Value::String(value.into()),
                    Number::PerLayer(pattern) => {
                        Value::Bools(pattern.iter().copied().cycle().take(self.layers).collect())
                    }
                },
            );
        }
        if let Some(window) = self.window {
            put("attention.sliding_window", number(window));
        }
        if self.synthetic().has_tensor("token_types.weight") {
            m.insert("tokenizer.ggml.token_type_count", Value::Uint(2));
        }
        m
    }
}

/// Which of the optional tensors a model of this shape has.
impl Source for Shape {
    fn shape(&self, name: &str) -> Option<[usize; 2]> {
        let part =
            name.rsplit_once("blk.").map_or(name, |(_, tail)| tail.split_once('.').map_or(tail, |t| t.1));
        let exists = match part {
            "token_embd.weight" => true,
            "output.weight" => !self.tied,
            part => self.synthetic().has_tensor(part) || self.values(name).is_some(),
        };
        exists.then_some([self.vocab, self.width])
    }

    fn values(&self, name: &str) -> Option<Vec<f32>> {
        (self.synthetic().constants)(name, self)
    }
}
