"""A language model whose output layer is its embedding, and an LSTM with packed sequences."""

import math

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True
        )
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self, vocab=40, dim=32, depth=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"ln": nn.LayerNorm(dim), "attn": Attention(dim, 4)})
            for _ in range(depth)
        )
        self.drop = nn.Dropout(0.1)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.wte.weight = self.lm_head.weight  # weight tying
        self.apply(lambda m: isinstance(m, nn.Linear) and nn.init.normal_(m.weight, std=0.02))

    def forward(self, idx, targets=None):
        x = self.drop(self.wte(idx))
        for block in self.blocks:
            x = x + block["attn"](block["ln"](x))
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizers(self, lr):
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        decay = [p for p in params.values() if p.dim() >= 2]
        nodecay = [p for p in params.values() if p.dim() < 2]
        return torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
            lr=lr,
        )

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            logits, _ = self(idx)
            idx = torch.cat((idx, logits[:, -1].argmax(-1, keepdim=True)), dim=1)
        return idx


torch.manual_seed(1337)
model = GPT()
optimizer = model.configure_optimizers(1e-2)
text = torch.arange(400) * 7 % 40
for it in range(10):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * it / 10))
    ix = torch.randint(len(text) - 17, (8,))
    x = torch.stack([text[i : i + 16] for i in ix])
    y = torch.stack([text[i + 1 : i + 17] for i in ix])
    logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item()}")
model.eval()
print(model.generate(text[:4].view(1, -1), 4).shape)
assert model.wte.weight is model.lm_head.weight
torch.save(model.state_dict(), "weights.pt")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 16, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, 5)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(
            self.embed(x), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(out)


tagger = Tagger()
optimizer = torch.optim.RMSprop(tagger.parameters(), lr=1e-2)
for _ in range(5):
    x, lengths = torch.randint(1, 40, (4, 9)), torch.tensor([9, 4, 7, 2])
    out = tagger(x, lengths)
    loss = nn.functional.cross_entropy(out.transpose(1, 2), x[:, : out.size(1)] % 5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item()}")
