"""Models for llama.cpp and Ollama: the stage `gguf`."""
