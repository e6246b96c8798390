"""The target model: spec, weights, cache, forward, tokenizer. Only this room reads transformers."""
