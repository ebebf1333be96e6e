// llama.cpp's own reading of an answer: lines of {template, bos, eos, messages, tools, thinking, choice, output} on stdin.
#include "chat.h"
#include <iostream>
#include <fstream>
#include <sstream>
int main() {
    std::string line;
    while (std::getline(std::cin, line)) {
        common_json out = common_json::object();
        try {
            auto in = common_json::parse(line);
            auto tmpls = common_chat_templates_init(nullptr, in.at("template").get<std::string>(), in.value("bos", std::string("<s>")), in.value("eos", std::string("</s>")));
            common_chat_templates_inputs inputs;
            inputs.messages = common_chat_msgs_parse_oaicompat(in.at("messages"));
            inputs.tools = common_chat_tools_parse_oaicompat(in.at("tools"));
            inputs.parallel_tool_calls = true;
            inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
            inputs.enable_thinking = in.value("thinking", true);
            if (in.value("choice", std::string("auto")) == "required") inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
            auto params = common_chat_templates_apply(tmpls.get(), inputs);
            out["prompt"] = params.prompt;
            out["generation_prompt"] = params.generation_prompt;
            out["format"] = common_chat_format_name(params.format);
            common_chat_parser_params p(params);
            p.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
            if (!params.parser.empty()) p.parser.load(params.parser);
            if (in.contains("output")) {
                auto msg = common_chat_parse(in.at("output").get<std::string>(), false, p);
                out["message"] = msg.to_json_oaicompat();
            }
        } catch (const std::exception & e) { out["error"] = std::string(e.what()); }
        std::cout << out.dump() << std::endl;
    }
}
