"""A shrunk residual network with two heads of one shape, as a user has it before an edit."""

import torch
from torch import nn
from torch.nn import functional as F


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.tanh()


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.shortcut = nn.Conv2d(before, after, 1, stride)

    def forward(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return self.relu(out + self.shortcut(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.stages = nn.ModuleList([Block(8, 8, 1), Block(8, 16, 2)])
        self.scale = nn.Parameter(torch.ones(16))
        self.drop = nn.Dropout(0.1)
        self.classes = nn.Linear(16, 10)
        self.boxes = nn.Linear(16, 10)

    def forward(self, x):
        x = (x - self.mean) / 0.25
        x = self.pool(F.relu(self.norm(self.stem(x))))
        for stage in self.stages:
            x = stage(x)
        x = x.mean((2, 3)) * self.scale
        x = self.drop(Squash.apply(x))
        classes = self.classes(x)
        boxes = self.boxes(x)
        return {"classes": classes.softmax(-1), "boxes": boxes.sigmoid()}
