import "capstan-webgpu/chat";
