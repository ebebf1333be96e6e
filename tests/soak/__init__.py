"""Models that are opened, chatted with, rewound, cancelled and closed for minutes, while devices are lost."""
