"""The table of layers of transformers: mined from the package, each built and called once with small sizes.

A line is ``model.class | configuration | options | arguments | shape of the input | notes``: ``first`` where the
layer returns several values, ``same`` where the result has the shape of the input.
"""

from __future__ import annotations

TABLE = """
[norm]
llama.LlamaRMSNorm |  |  | {H} | B,T,H | same
t5.T5LayerNorm |  |  | {H} | B,T,H | same
mistral.MistralRMSNorm |  |  | {H} | B,T,H | same
wav2vec2.Wav2Vec2EncoderLayerStableLayerNorm | Wav2Vec2Config | hialv | config | B,T,H | same
convnext.ConvNextLayerNorm |  |  | {H} | B,T,H | same
convnextv2.ConvNextV2GRN |  |  | {H} | B,T,H |
convnextv2.ConvNextV2LayerNorm |  |  | {H} | B,T,H | same
squeezebert.SqueezeBertLayerNorm |  |  | {H} | B,H,T | same
nemotron.NemotronLayerNorm1P |  |  | {H} | B,T,H | same
hubert.HubertEncoderLayerStableLayerNorm | HubertConfig | hialv | config | B,T,H | same
axk2.AXK2GatedRMSNorm | AXK2Config | ehimaplkTv | config | B,T,H | same
vitdet.VitDetLayerNorm |  |  | {H} | B,H,S,S | same
voxtral_realtime.VoxtralRealtimeTextAdaRmsNorm | VoxtralRealtimeTextConfig | ehialkv | config | B,T,H | same
wavlm.WavLMEncoderLayerStableLayerNorm | WavLMConfig | hialv | config | B,T,H | first same
[attention]
bert.BertSelfAttention | BertConfig | hialv | config | B,T,H | first same
bert.BertAttention | BertConfig | hialv | config | B,T,H | first same
gpt2.GPT2Attention | GPT2Config | hnNILalv | config | B,T,H | first same
t5.T5Attention | T5Config | fqdehaHlPv | config | B,T,H | first same
t5.T5LayerSelfAttention | T5Config | fqdehaHlPv | config | B,T,H | first same
vit.ViTAttention | ViTConfig | hial | config | B,T,H | first same
opt.OPTAttention | OPTConfig | Fhalv | config | B,T,H | first same
roberta.RobertaSelfAttention | RobertaConfig | hialv | config | B,T,H | first same
roberta.RobertaAttention | RobertaConfig | hialv | config | B,T,H | first same
electra.ElectraSelfAttention | ElectraConfig | bhialv | config | B,T,H | first same
electra.ElectraAttention | ElectraConfig | bhialv | config | B,T,H | first same
beit.BeitAttention | BeitConfig | hialv | config | B,T,H | first same
nystromformer.NystromformerSelfAttention | NystromformerConfig | hialv | config | B,T,H | first same
nystromformer.NystromformerAttention | NystromformerConfig | hialv | config | B,T,H | first same
jamba.JambaAttention | JambaConfig | hiatplkTv | config, layer_idx=0 | B,T,H | first same
mt5.MT5Attention | MT5Config | fqdehaHlPv | config | B,T,H | first same
mt5.MT5LayerSelfAttention | MT5Config | fqdehaHlPv | config | B,T,H | first same
bigbird_pegasus.BigBirdPegasusSelfAttention | BigBirdPegasusConfig | dYXyxhalv | config | B,T,H | first same
bridgetower.BridgeTowerResidualAttention | BridgeTowerTextConfig | hialv | config | B,T,H | same
clvp.ClvpSelfAttention | ClvpEncoderConfig | hialv | config | B,T,H | first same
convbert.ConvBertSelfAttention | ConvBertConfig | bhialv | config | B,T,H | first same
convbert.ConvBertAttention | ConvBertConfig | bhialv | config | B,T,H | same
gpt_bigcode.GPTBigCodeAttention | GPTBigCodeConfig | hnNILalv | config | B,T,H | first same
muse_glimmer.MuseGlimmerTextAttention | MuseGlimmerTextConfig | ehialkv | config, layer_idx=0 | B,T,H | first same
muse_spark.MuseSparkTextAttention | MuseSparkTextConfig | ehimaplkTv | config, layer_idx=0 | B,T,H | first same
reformer.LSHSelfAttention | ReformerConfig | hav | config | B,T,H | first
reformer.LocalSelfAttention | ReformerConfig | hav | config | B,T,H | first
seamless_m4t_v2.SeamlessM4Tv2ConformerSelfAttention | SeamlessM4Tv2Config | YXyxhalv | config | B,T,H | first same
umt5.UMT5LayerSelfAttention | UMT5Config | fqdehaHlPv | config | B,T,H | first same
videomae.VideoMAEAttention | VideoMAEConfig | hial | config | B,T,H | same
vits.VitsAttention | VitsConfig | Fhalv | config | B,T,H | first same
wav2vec2_bert.Wav2Vec2BertSelfAttention | Wav2Vec2BertConfig | hialv | config | B,T,H | first same
[feed forward]
llama.LlamaMLP | LlamaConfig | ehialkv | config | B,T,H | same
bert.BertIntermediate | BertConfig | hialv | config | B,T,H |
t5.T5DenseActDense | T5Config | fqdehaHlPv | config | B,T,H | same
t5.T5DenseGatedActDense | T5Config | fqdehaHlPv | config | B,T,H | same
vit.ViTMLP | ViTConfig | hial | config | B,T,H | same
mistral.MistralMLP | MistralConfig | ehialkv | config | B,T,H | same
phi.PhiMLP | PhiConfig | hialkv | config | B,T,H | same
falcon.FalconMLP | FalconConfig | halv | config | B,T,H | same
roberta.RobertaIntermediate | RobertaConfig | hialv | config | B,T,H |
electra.ElectraIntermediate | ElectraConfig | bhialv | config | B,T,H |
distilbert.FFN | DistilBertConfig | DghGMalv | config | B,T,H | same
dinov2.Dinov2MLP | Dinov2Config | hal | config | B,T,H | same
dinov2.Dinov2SwiGLUFFN | Dinov2Config | hal | config | B,T,H | same
funnel.FunnelPositionwiseFFN | FunnelConfig | dhNav | config | B,T,H | same
nemotron.NemotronMLP | NemotronConfig | ehialkv | config | B,T,H | same
mt5.MT5DenseActDense | MT5Config | fqdehaHlPv | config | B,T,H | same
mt5.MT5LayerFF | MT5Config | fqdehaHlPv | config | B,T,H | same
apertus.ApertusMLP | ApertusConfig | hialkv | config | B,T,H | same
apertus1p5.Apertus1p5TextMLP | Apertus1p5TextConfig | hialkv | config | B,T,H | same
aria.AriaSharedExpertsMLP | AriaTextConfig | ehialkv | config | B,T,H | same
axk2.AXK2GateMLP | AXK2Config | ehimaplkTv | config | B,T,H | same
bark.BarkMLP | BarkFineConfig | haHlPv | config | B,T,H | same
bitnet.BitNetMLP | BitNetConfig | hialkv | config | B,T,H | same
clvp.ClvpEncoderMLP | ClvpEncoderConfig | hialv | config | B,T,H | same
cpmant.CpmAntDenseGatedACT | CpmAntConfig | halv | config | B,T,H |
dab_detr.DabDetrDecoderLayerFFN | DabDetrConfig | YXyxhal | config | B,T,H | same
dbrx.DbrxFFN | DbrxConfig | dhGMalv | config | B,T,H | same
deimv2.Deimv2SwiGLUFFN | Deimv2Config | dYXyxha | config | B,T,H | same
dinov2_with_registers.Dinov2WithRegistersMLP | Dinov2WithRegistersConfig | hal | config | B,T,H | same
dinov2_with_registers.Dinov2WithRegistersSwiGLUFFN | Dinov2WithRegistersConfig | hal | config | B,T,H | same
dinov3_vit.DINOv3ViTGatedMLP | DINOv3ViTConfig | hial | config | B,T,H | same
dory.DoryMLP | DoryConfig | ehialkv | config | B,T,H | same
dots3_note.Dots3NoteAudioMLP | Dots3NoteTextConfig | ehimaplkTv | config | B,T,H | same
eomt.EomtSwiGLUFFN | EomtConfig | hal | config | B,T,H | same
glm4v.Glm4VisionMlp | Glm4vVisionConfig | hiaHl | config | B,T,H | same
glm4v_moe.Glm4vMoeisionMlp | Glm4vMoeVisionConfig | hiaHl | config | B,T,H | same
[head]
bert.BertPooler | BertConfig | hialv | config | B,T,H |
bert.BertPredictionHeadTransform | BertConfig | hialv | config | B,T,H | same
t5.T5ClassificationHead | T5Config | fqdehaHlPv | config | B,T,H |
vit.ViTPooler | ViTConfig | hial | config | B,T,H |
roberta.RobertaPooler | RobertaConfig | hialv | config | B,T,H |
roberta.RobertaLMHead | RobertaConfig | hialv | config | B,T,H |
electra.ElectraDiscriminatorPredictions | ElectraConfig | bhialv | config | B,T,H |
electra.ElectraGeneratorPredictions | ElectraConfig | bhialv | config | B,T,H | same
deberta_v2.LegacyDebertaV2PredictionHeadTransform | DebertaV2Config | hialv | config | B,T,H | same
deberta_v2.LegacyDebertaV2LMPredictionHead | DebertaV2Config | hialv | config | B,T,H |
albert.AlbertMLMHead | AlbertConfig | bhialv | config | B,T,H |
albert.AlbertSOPHead | AlbertConfig | bhialv | config | B,T,H |
siglip.SiglipMultiheadAttentionPoolingHead | SiglipTextConfig | hialv | config | B,T,H |
beit.BeitPooler | BeitConfig | hialv | config | B,T,H |
mobilebert.MobileBertOnlyNSPHead | MobileBertConfig | bhialv | config | B,T,H |
longformer.LongformerClassificationHead | LongformerConfig | hialv | config | B,T,H |
funnel.FunnelDiscriminatorPredictions | FunnelConfig | dhNav | config | B,T,H |
fnet.FNetOnlyNSPHead | FNetConfig | hilv | config | B,T,H |
nystromformer.NystromformerClassificationHead | NystromformerConfig | hialv | config | B,T,H |
rembert.RemBertLMPredictionHead | RemBertConfig | hialv | config | B,T,H |
rembert.RemBertOnlyMLMHead | RemBertConfig | hialv | config | B,T,H |
mt5.MT5ClassificationHead | MT5Config | fqdehaHlPv | config | B,T,H |
aimv2.Aimv2AttentionPoolingHead | Aimv2TextConfig | hialv | config | B,T,H |
audio_spectrogram_transformer.ASTMLPHead | ASTConfig | hial | config | B,T,H |
[block]
bert.BertLayer | BertConfig | hialv | config | B,T,H | same
gpt2.GPT2Block | GPT2Config | hnNILalv | config | B,T,H | same
t5.T5Block | T5Config | fqdehaHlPv | config | B,T,H | first same
vit.ViTLayer | ViTConfig | hial | config | B,T,H | same
bart.BartDecoderLayer | BartConfig | dYXyxhalv | config | B,T,H | same
mbart.MBartDecoderLayer | MBartConfig | dYXyxhalv | config | B,T,H | same
whisper.WhisperDecoderLayer | WhisperConfig | dYXyxhalkv | config | B,T,H | same
wav2vec2.Wav2Vec2Adapter | Wav2Vec2Config | hialv | config | B,T,H |
wav2vec2.Wav2Vec2AdapterLayer | Wav2Vec2Config | hialv | config | B,H,T |
dinov2.Dinov2Layer | Dinov2Config | hal | config | B,T,H | same
beit.BeitLayer | BeitConfig | hialv | config | B,T,H | same
beit.BeitFPNUpBlock |  |  | {H} | B,H,S,S |
mobilebert.BottleneckLayer | MobileBertConfig | bhialv | config | B,T,H |
mobilebert.Bottleneck | MobileBertConfig | bhialv | config | B,T,H | first
fnet.FNetLayer | FNetConfig | hilv | config | B,T,H | first same
nystromformer.NystromformerLayer | NystromformerConfig | hialv | config | B,T,H | first same
jamba.JambaAttentionDecoderLayer | JambaConfig | hiatplkTv | config, layer_idx=0 | B,T,H | same
mt5.MT5Block | MT5Config | fqdehaHlPv | config | B,T,H | first same
pegasus.PegasusDecoderLayer | PegasusConfig | dYXyxhalv | config | B,T,H | same
ctrl.EncoderLayer | CTRLConfig | hnNLalv | config | B,T,H | same
aimv2.Aimv2EncoderLayer | Aimv2TextConfig | hialv | config | B,T,H | same
aria.AriaTextMoELayer | AriaTextConfig | ehialkv | config | B,T,H | same
autoformer.AutoformerDecoderLayer | AutoformerConfig | dYXyxhal | config | B,T,H | first same
bamba.BambaDecoderLayer | BambaConfig | hialkv | config, layer_idx=0 | B,T,H | first same
bigbird_pegasus.BigBirdPegasusDecoderLayer | BigBirdPegasusConfig | dYXyxhalv | config | B,T,H | same
cohere_compass.CohereCompassDecoderLayer | CohereCompassTextConfig | hialkv | config, layer_idx=0 | B,T,H | same
convbert.ConvBertLayer | ConvBertConfig | bhialv | config | B,T,H | same
deepseek_ocr2.DeepseekOcr2SamMLPBlock | DeepseekOcr2SamVisionConfig | hal | config | B,T,H | same
dinov2_with_registers.Dinov2WithRegistersLayer | Dinov2WithRegistersConfig | hal | config | B,T,H | same
emu3.Emu3VQVAEAttentionBlock | Emu3TextConfig | hialkv | config | B,T,H | first same
eomt.EomtScaleLayer | EomtConfig | hal | config | B,H,S,S |
eomt.EomtScaleBlock | EomtConfig | hal | config | B,H,S,S |
eomt_dinov3.EomtDinov3ScaleLayer | EomtDinov3Config | hial | config | B,H,S,S |
eomt_dinov3.EomtDinov3ScaleBlock | EomtDinov3Config | hial | config | B,H,S,S |
flaubert.FlaubertPredLayer | FlaubertConfig | hGMalv | config | B,T,H | first
flint.FlintDecoderLayer | FlintConfig | ehimatplkv | config, layer_idx=0 | B,T,H | same
gemma3n.Gemma3nTextLaurelBlock | Gemma3nTextConfig | ehialkv | config | B,T,H | same
got_ocr2.GotOcr2MLPBlock | GotOcr2VisionConfig | hal | config | B,T,H | same
gpt_bigcode.GPTBigCodeBlock | GPTBigCodeConfig | hnNILalv | config | B,T,H | same
granite_swa.GraniteSWADecoderLayer | GraniteSWAConfig | hialkv | config, layer_idx=0 | B,T,H | same
granitemoe_swa.GraniteMoeSWADecoderLayer | GraniteMoeSWAConfig | hiaplkTv | config, layer_idx=0 | B,T,H | same
granitemoehybrid.GraniteMoeHybridDecoderLayer | GraniteMoeHybridConfig | hiaplkTv | config, layer_idx=0 | B,T,H | same
hgnet_v2.HGNetV2LearnableAffineBlock |  |  |  | B,T,H | same
[mixture]
mixtral.MixtralSparseMoeBlock | MixtralConfig | ehiatplkTv | config | B,T,H | same
llama4.Llama4TextExperts | Llama4TextConfig | ehiaplkTv | config | B,T,H |
llama4.Llama4TextMoe | Llama4TextConfig | ehiaplkTv | config | B,T,H | first
jamba.JambaSparseMoeBlock | JambaConfig | hiatplkTv | config | B,T,H | same
afmoe.AfmoeSparseMoeBlock | AfmoeConfig | ehimatplkv | config | B,T,H | same
axk2.AXK2MoE | AXK2Config | ehimaplkTv | config | B,T,H | same
cohere2_moe.Cohere2MoeSparseMoeBlock | Cohere2MoeConfig | ehiatplkv | config | B,T,H | same
deepseek_ocr2.DeepseekOcr2TextMoe | DeepseekOcr2TextConfig | ehimatplkv | config | B,T,H | same
deepseek_v2.DeepseekV2Moe | DeepseekV2Config | ehimatplkv | config | B,T,H | same
doge.DogeCDMoE | DogeConfig | hiatplkv | config | B,T,H | first same
dots3_note.Dots3NoteTextMoE | Dots3NoteTextConfig | ehimaplkTv | config | B,T,H | same
ernie4_5_moe.Ernie4_5_MoeSparseMoeBlock | Ernie4_5_MoeConfig | himatplkv | config | B,T,H | same
exaone_moe.ExaoneMoeSparseMoEBlock | ExaoneMoeConfig | himatplkv | config | B,T,H | same
flint.FlintSparseMoeBlock | FlintConfig | ehimatplkv | config | B,T,H | same
[mixer]
mamba.MambaMixer | MambaConfig | hlv | config, layer_idx=0 | B,T,H | same
fnet.FNetBasicFourierTransform | FNetConfig | hilv | config | B,T,H | first same
fnet.FNetFourierTransform | FNetConfig | hilv | config | B,T,H | first same
jamba.JambaMambaMixer | JambaConfig | hiatplkTv | config, layer_idx=0 | B,T,H | same
jamba.JambaMambaDecoderLayer | JambaConfig | hiatplkTv | config, layer_idx=0 | B,T,H | same
bamba.BambaMixer | BambaConfig | hialkv | config, layer_idx=0 | B,T,H | same
granitemoehybrid.GraniteMoeHybridMambaLayer | GraniteMoeHybridConfig | hiaplkTv | config, layer_idx=0 | B,T,H | same
lfm2.Lfm2ShortConv | Lfm2Config | hialkv | config, layer_idx=0 | B,T,H | same
lfm3.Lfm3ShortConv | Lfm3Config | ehialkv | config, layer_idx=0 | B,T,H | same
sam3_lite_text.Sam3LiteTextRepMixer | Sam3LiteTextTextConfig | hialv | config | B,H,S,S | same
[other]
bloom.BloomGelu |  |  |  | B,T,H | same
wav2vec2.Wav2Vec2PositionalConvEmbedding | Wav2Vec2Config | hialv | config | B,T,H | same
hubert.HubertPositionalConvEmbedding | HubertConfig | hialv | config | B,T,H | same
autoformer.AutoformerLayernorm | AutoformerConfig | dYXyxhal | config | B,T,H | same
blt.BltGlobalTransformer | BltPatcherConfig | hialkv | config | B,T,H | same
bridgetower.BridgeTowerTransformer | BridgeTowerVisionConfig | hl | config | B,T,H | first same
chameleon.ChameleonVQVAEVectorQuantizer | ChameleonVQVAEConfig |  | config | B,H,S,S | first same
dac.Snake1d |  |  | {H} | B,H,T | same
falcon_h1.FalconH1RMSNormGated |  |  | {H} | B,T,H | same
gemma3n.Gemma3nAudioConformerLightConv1d | Gemma3nAudioConfig | hv | config | B,T,H | same
"""
