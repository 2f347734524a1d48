package main

import (
	"fmt"
	"image/color"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// looks are the colours and marks of the contenders, in their order.
var looks = []struct {
	color color.RGBA
	glyph draw.GlyphDrawer
}{
	{color.RGBA{0xc4, 0x3a, 0x31, 0xff}, draw.CircleGlyph{}},
	{color.RGBA{0x2b, 0x6c, 0xb0, 0xff}, draw.SquareGlyph{}},
	{color.RGBA{0x2f, 0x85, 0x5a, 0xff}, draw.TriangleGlyph{}},
}

// plotName is the name of the file for the plot of t, within the output directory.
func (t table) plotName() string {
	what := t.name
	if len(t.metrics) > 1 {
		what += "-" + t.metric.name
	}
	name := fmt.Sprintf("peers-%s-%d-%s", what, t.ranks, t.transport)
	if t.cores != "" {
		name += "-" + strings.Fields(t.cores)[1]
	}
	return name + ".svg"
}

// writePlot draws the medians of t over the sizes, both axes logarithmic, into
// dir. A size of 0 has no place on such an axis and is left out; with fewer than
// two sizes left there is nothing to draw, and it returns false.
func writePlot(dir string, t table, names map[string]string) (bool, error) {
	p := plot.New()
	p.Title.Text = t.setting.String()
	p.X.Label.Text, p.Y.Label.Text = "bytes", t.metric.unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	drawn := false
	for i, who := range t.whos {
		var line plotter.XYs
		for _, r := range t.rows {
			if figure, ok := r.median[who]; ok && r.size > 0 {
				line = append(line, plotter.XY{X: float64(r.size), Y: figure})
			}
		}
		if len(line) < 2 {
			continue
		}
		lines, points, err := plotter.NewLinePoints(line)
		if err != nil {
			return false, err
		}
		look := looks[i%len(looks)]
		lines.Color, points.Color, points.Shape = look.color, look.color, look.glyph
		p.Add(lines, points)
		p.Legend.Add(names[who], lines, points)
		drawn = true
	}
	if !drawn {
		return false, nil
	}
	return true, p.Save(16*vg.Centimeter, 11*vg.Centimeter, filepath.Join(dir, t.plotName()))
}
