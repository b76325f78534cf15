"""Train the network as usual: nothing here knows of nac_openood."""

import torch
from net import make
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

torch.manual_seed(0)
normalize = transforms.Normalize([0.5] * 3, [0.5] * 3)
steps = transforms.Compose([transforms.Resize(32), transforms.ToTensor(), normalize])
images = ImageFolder("digits/train", steps)
net = make(len(images.classes)).train()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(8):
    for x, y in DataLoader(images, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
print(f"{len(images)} images, 8 epochs, loss {loss.item():.3f}")
torch.save(net.state_dict(), "net.pt")
