"""Revocation: will a market's price exceed a max price within the hour? (SpotTune, III-B)"""
