#include "text/gguf_pre_tokenizers.h"

namespace tare::text {

namespace {

using Step = GgufPreTokenizer::Step;
using Part = GgufPreTokenizer::Part;

// Patterns of the original tokenizers (their tokenizer.json), which the names stand for.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kWithoutContractions =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kDeepSeekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kJais2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
// Han runs apart, and no Han character inside the words of the o200k pattern.
constexpr std::string_view kKimi =
    R"(\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kYoutuScripts =
    R"([가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+)";
constexpr std::string_view kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr Part kGpt2Parts[] = {{Step::kGpt2}};
constexpr Part kDigitsGpt2[] = {{Step::kDigits}, {Step::kGpt2}};
constexpr Part kLlama3Parts[] = {{Step::kSplit, kLlama3}};
constexpr Part kQwen2Parts[] = {{Step::kSplit, kQwen2}};
constexpr Part kQwen35Parts[] = {{Step::kSplit, kQwen35}};
constexpr Part kPlainParts[] = {{Step::kSplit, kWithoutContractions}};
constexpr Part kO200kParts[] = {{Step::kSplit, kO200k}};
constexpr Part kTekkenParts[] = {{Step::kSplit, kTekken}};
constexpr Part kBloomParts[] = {{Step::kSplit, kBloom}};
constexpr Part kVikingParts[] = {{Step::kSplit, kBloom}, {Step::kDigits}};
constexpr Part kFalconParts[] = {{Step::kPunctuation}, {Step::kGpt2}, {Step::kByteDigits}, {Step::kThreeDigits}};
constexpr Part kDeepSeekLlmParts[] = {{Step::kSplit, R"([\r\n])"},
                                      {Step::kSplit, kDeepSeekLetters},
                                      {Step::kSplit, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)"},
                                      {Step::kSplit, R"(\s+$)"},
                                      {Step::kSplit, "[一-龥ࠀ-一가-퟿]+"},
                                      {Step::kDigits}};
constexpr Part kDeepSeekCoderParts[] = {{Step::kSplit, R"([\r\n])"},
                                        {Step::kSplit, R"(\s?\p{L}+)"},
                                        {Step::kSplit, R"(\s?\p{P}+)"},
                                        {Step::kSplit, "[一-龥ࠀ-一가-퟿]+"},
                                        {Step::kDigits}};
constexpr Part kDeepSeek3Parts[] = {
    {Step::kSplit, R"(\p{N}{1,3})"}, {Step::kSplit, "[一-龥぀-ゟ゠-ヿ]+"}, {Step::kSplit, kDeepSeek3}};
constexpr Part kBailingParts[] = {{Step::kSplit, kBailing}};
constexpr Part kSeedCoderParts[] = {{Step::kSplit, kSeedCoder}};
constexpr Part kExaoneMoeParts[] = {{Step::kSplit, kExaoneMoe}};
constexpr Part kJais2Parts[] = {{Step::kSplit, kJais2}};
constexpr Part kKimiParts[] = {{Step::kSplit, kKimi}};
constexpr Part kYoutuParts[] = {{Step::kSplit, kYoutuScripts}, {Step::kSplit, kYoutu}};
constexpr Part kTinyAyaParts[] = {{Step::kSplit, R"(\d{1,3}(?=(?:\d{3})*\b))"}, {Step::kSplit, kO200k}};
constexpr Part kLagunaParts[] = {{Step::kSplit, R"([^\n]+|[\n]+)"}, {Step::kSplit, kQwen2}};
constexpr Part kMiniCpm5Parts[] = {
    {Step::kSplit, R"(\p{N}{1,3})"},
    {Step::kSplit,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
constexpr Part kChameleonParts[] = {
    {Step::kSplit, "<sentinel:[0-9]+>"},       {Step::kSplit, "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"},
    {Step::kSplit, R"(([\t\n]|    |  ))"},     {Step::kDigits},
    {Step::kSplit, R"([\p{P}!-/:-@\[-`{-~])"}, {Step::kGpt2}};

constexpr GgufPreTokenizer kTable[] = {
    {"gpt-2", kGpt2Parts},
    {"phi-2", kGpt2Parts},
    {"gigachat", kGpt2Parts},
    {"a.x-4.0", kGpt2Parts},
    {"mellum", kGpt2Parts},
    {"exaone4", kGpt2Parts},
    {"jais", kGpt2Parts},
    {"trillion", kGpt2Parts},
    {"granite-docling", kGpt2Parts},
    {"mpt", kGpt2Parts, true},
    {"olmo", kGpt2Parts, true},
    {"starcoder", kDigitsGpt2},
    {"refact", kDigitsGpt2},
    {"command-r", kDigitsGpt2, true},
    {"smollm", kDigitsGpt2},
    {"codeshell", kDigitsGpt2},
    {"exaone", kDigitsGpt2},
    {"minerva-7b", kDigitsGpt2},
    {"mellum2", kDigitsGpt2},
    {"llama3", kLlama3Parts, false, true, true},
    {"llama-v3", kLlama3Parts, false, true, true},
    {"llama-bpe", kLlama3Parts, false, true, true},
    {"falcon3", kLlama3Parts, false, true, true},
    {"falcon-h1", kLlama3Parts, false, true, true},
    {"pixtral", kLlama3Parts, false, true, true},
    {"midm-2.0", kLlama3Parts, false, true, true},
    {"lfm2", kLlama3Parts, false, true, true},
    {"dbrx", kLlama3Parts},
    {"smaug-bpe", kLlama3Parts},
    {"glm4", kLlama3Parts},
    {"chatglm-bpe", kLlama3Parts},
    {"qwen2", kQwen2Parts, true},
    {"deepseek-r1-qwen", kQwen2Parts, true},
    {"megrez", kQwen2Parts, true},
    {"kormo", kQwen2Parts, true},
    {"stablelm2", kQwen2Parts},
    {"hunyuan", kQwen2Parts},
    {"solar-open", kQwen2Parts},
    {"grok-2", kQwen2Parts},
    {"qwen35", kQwen35Parts, true},
    {"ufakzeka", kPlainParts, true},
    {"gpt-4o", kO200kParts},
    {"llama4", kO200kParts},
    {"kanana2", kO200kParts},
    {"talkie", kO200kParts},
    {"minimax-m2", kO200kParts},
    {"tekken", kTekkenParts, false, true, true},
    {"bloom", kBloomParts},
    {"poro-chat", kBloomParts},
    {"gpt3-finnish", kBloomParts},
    {"viking", kVikingParts},
    {"falcon", kFalconParts},
    {"deepseek-llm", kDeepSeekLlmParts},
    {"deepseek-coder", kDeepSeekCoderParts},
    {"deepseek-v3", kDeepSeek3Parts},
    {"hunyuan-dense", kDeepSeek3Parts},
    {"joyai-llm", kDeepSeek3Parts},
    {"hy_v4", kDeepSeek3Parts},
    {"bailingmoe", kBailingParts},
    {"bailingmoe2", kBailingParts},
    {"llada-moe", kBailingParts},
    {"seed-coder", kSeedCoderParts},
    {"exaone-moe", kExaoneMoeParts},
    {"jais-2", kJais2Parts},
    {"kimi-k2", kKimiParts},
    {"youtu", kYoutuParts, false, true},
    {"tiny_aya", kTinyAyaParts},
    {"cohere2moe", kTinyAyaParts},
    {"laguna", kLagunaParts},
    {"minicpm5", kMiniCpm5Parts, false, true},
    {"chameleon", kChameleonParts, false, false, true},
    {"gemma4", {}, false, false, false, true},
    {"sarvam-moe", {}, false, false, false, true},
};

}  // namespace

std::span<const GgufPreTokenizer> gguf_pre_tokenizers() {
  return kTable;
}

const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name) {
  for (const GgufPreTokenizer& entry : kTable) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace tare::text
