"""The arguments, the model and the loop of all scripts."""

import argparse

import onnxruntime_genai as og


def arguments(description, **more):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-m", "--model_path", required=True, help="the folder with genai_config.json")
    parser.add_argument("-e", "--execution_provider", default="follow_config", help="cpu, webgpu or follow_config")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def load(args, overlay=None):
    config = og.Config(args.model_path)
    if overlay is not None:
        config.overlay(overlay)
    if args.execution_provider != "follow_config":
        config.clear_providers()
        config.append_provider(args.execution_provider)
    return og.Model(config)
